package node_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
)

// TestRepairsThatGoOn has something else change a dataplane which does not know who does so. Once or twice is nobody's fault.
func TestRepairsThatGoOn(t *testing.T) {
	for strict, want := range map[bool]string{true: "503", false: "200"} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			c := config.Default()
			c.HealthzBindAddress, c.MetricsBindAddress = freeAddress(t), netip.AddrPort{}
			m := newMemory(0)
			feed := &backendtest.Feed{}
			feed.Publish([]*state.Service{{Name: state.ServiceName{Namespace: "shop", Name: "web"}}})
			reports := make(chan state.Revision, 100)
			n, err := node.New(t.Context(), node.Options{
				Config: c, StrictHealth: strict,
				Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
				States: &node.States{
					Feed: feed, Latest: func() (state.Revision, int) { return feed.Revision(), len(feed.Services()) },
					Report: func(applied state.Revision, _ map[state.ServiceName]error) { reports <- applied },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, stop := start(t, n)
			for <-reports == 0 { // one comes before the update is applied
			}
			repaired := func() {
				for range reports {
					if slices.ContainsFunc(m.Calls(), func(call backendtest.Call) bool { return call.Result.Repaired > 0 }) {
						return
					}
				}
			}
			for range 2 {
				m.Drift(1)
				m.Disturb()
				repaired()
				if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.HasPrefix(text, "200 ") || strings.Contains(text, "repaired") {
					t.Errorf("after a repair: %s", text)
				}
			}
			m.Drift(1)
			m.Disturb()
			repaired()
			if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.HasPrefix(text, want) || !strings.Contains(text, "the dataplane had to be repaired 3 times within 5m0s") {
				t.Errorf("after the third: %s", text)
			}
			stop()
			<-m.closed
		})
	}
}
