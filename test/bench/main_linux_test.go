package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
)

func TestMain(m *testing.M) {
	if os.Getenv(asConnections) == "" {
		os.Exit(netns.Main(m))
	}
	if err := MeasureConnections(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
