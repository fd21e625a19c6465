package node_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/config"
)

// TestTraffic: connections are counted and shown while the configuration wants that, also when it changes while the node runs.
func TestTraffic(t *testing.T) {
	l := newLoneNode(t, config.ModeNFTables)
	addr := freeAddress(t)
	configure := func(mode config.Mode, counters bool) {
		t.Helper()
		c := *l.c
		c.Mode, c.NFTables.Counters, c.MetricsBindAddress = mode, counters, addr
		check(t, l.node.Reconfigure(&c))
	}
	shows := func(text string, want bool) {
		t.Helper()
		var last string
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			r, err := http.Get("http://" + addr.String() + "/metrics")
			if err != nil {
				continue // the server is about to listen there
			}
			body, err := io.ReadAll(r.Body)
			r.Body.Close()
			check(t, err)
			if last = string(body); strings.Contains(last, text) == want {
				return
			}
		}
		t.Fatalf("the metrics show %q: %v, want %v\n%s", text, !want, want, last)
	}
	const series = `switchyard_service_connections_total{namespace="shop",port="TCP",service="web"} `

	configure(config.ModeNFTables, true)
	shows(`switchyard_service_connections_total{namespace="",port="",service=""} 0`, true)
	for range 5 {
		check(t, l.once())
	}
	shows(series+"5\n", true)
	configure(config.ModeNFTables, false)
	shows("switchyard_service_", false)
	configure(config.ModeUserspace, true)
	if text := "connections are counted in mode nftables only"; !strings.Contains(l.log.String(), text) {
		t.Errorf("the log does not have %q", text)
	}
	shows("switchyard_service_", false)
}
