package bench

import (
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }
