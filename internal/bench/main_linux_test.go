package bench

import (
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/internal/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }
