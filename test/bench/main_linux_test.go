package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) {
	if work := Worker(); work != nil {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(netnstest.Main(m))
}
