package bench

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(asConnections) != "":
		err = MeasureConnections(os.Stdin, os.Stdout)
	case os.Getenv(asHolder) != "":
		err = HoldDataplane(context.Background(), os.Stdin, os.Stdout)
	default:
		os.Exit(netnstest.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
