package bench

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(asConnections) != "":
		err = MeasureConnections(os.Stdin, os.Stdout)
	case os.Getenv(asHolder) != "":
		err = HoldDataplane(context.Background(), os.Stdin, os.Stdout)
	default:
		os.Exit(netns.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
