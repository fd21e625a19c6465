//go:build linux

package nftables

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// timedTable is a connection tracking table that takes its time to be listed, and remembers when it was.
type timedTable struct {
	took time.Duration
	// listErr and deleteErr are what listings and deletions end with, if they are set. No deletion is done then.
	listErr, deleteErr error

	mu    sync.Mutex
	flows []conntrack.Flow
	// began and ended are the times of listings, cut when the flows to endpoints were deleted.
	began, ended []time.Time
	cut          map[netip.AddrPort]time.Time
}

func (t *timedTable) Flows(f conntrack.Filter) ([]conntrack.Flow, error) {
	began := time.Now()
	t.mu.Lock()
	flows := slices.DeleteFunc(slices.Clone(t.flows), func(flow conntrack.Flow) bool { return !f.Match(flow) })
	t.mu.Unlock()
	time.Sleep(t.took)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began, t.ended = append(t.began, began), append(t.ended, time.Now())
	if t.listErr != nil {
		return nil, t.listErr
	}
	return flows, nil
}

func (t *timedTable) Delete(flow conntrack.Flow) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deleteErr != nil {
		return t.deleteErr
	}
	t.flows = slices.DeleteFunc(t.flows, func(f conntrack.Flow) bool { return f == flow })
	t.cut[flow.Reply.Src] = time.Now()
	return nil
}

// TestLooksArePaced commits changes all the time. Each makes one flow stale.
func TestLooksArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const commits, pace = 200, 50 * time.Millisecond
		table := &timedTable{took: 10 * time.Millisecond, cut: map[netip.AddrPort]time.Time{}}
		c := newFlowCutter(table, slog.New(slog.DiscardHandler))
		c.start()
		defer c.close()
		committed := map[netip.AddrPort]time.Time{}
		first := time.Now()
		version := func(i int) *state.Service {
			return serviceOf("dns", clusterIPPort(state.IPv4, state.UDP, 1, endpointsOf(state.IPv4, i, 1)))
		}
		for i := range commits {
			old, now := version(i), version(i+1)
			client, stale := addr("10.244.9.9"), old.Ports[0].Internal.Inside.Endpoints[0].Addr
			src := netip.AddrPortFrom(client, uint16(1024+i))
			table.mu.Lock()
			table.flows = append(table.flows, conntrack.Flow{
				Family: state.IPv4, Protocol: state.UDP,
				Orig:  conntrack.Tuple{Src: src, Dst: netip.AddrPortFrom(old.Ports[0].Frontends[0].Addr, 80)},
				Reply: conntrack.Tuple{Src: stale, Dst: src},
			})
			table.mu.Unlock()
			c.begin()
			committed[stale] = time.Now()
			c.committed(nil, flowNote{old: old, new: now})
			time.Sleep(pace)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !table.began[0].Equal(first) {
			t.Errorf("the first look came %v after the first commit, want at once", table.began[0].Sub(first))
		}
		for i := range table.began[1:] {
			if pause := table.began[i+1].Sub(table.ended[i]); pause < 500*time.Millisecond {
				t.Errorf("look %d began %v after the end of the one before, want 500ms or more", i+1, pause)
			}
		}
		for endpoint, at := range committed {
			if cut, ok := table.cut[endpoint]; !ok || cut.Sub(at) > time.Second {
				t.Errorf("the flow to %v: cut %v (%v after the commit), want within a second", endpoint, ok, cut.Sub(at))
			}
		}
		looks := len(table.began)
		time.Sleep(time.Hour)
		if len(table.began) != looks {
			t.Errorf("%d more looks in an hour without commits", len(table.began)-looks)
		}
		c.begin()
		again := time.Now()
		c.committed(nil, flowNote{old: version(0), new: version(1)})
		synctest.Wait()
		time.Sleep(table.took)
		synctest.Wait()
		if last := table.began[len(table.began)-1]; !last.Equal(again) {
			t.Errorf("the look after an hour of peace came %v after the commit, want at once", last.Sub(again))
		}
		// What is committed in the pause after it is not left to the next process.
		stale := netip.MustParseAddrPort("10.244.77.77:80")
		src := netip.AddrPortFrom(addr("10.244.9.9"), 999)
		table.mu.Lock()
		table.flows = append(table.flows, conntrack.Flow{
			Family: state.IPv4, Protocol: state.UDP,
			Orig:  conntrack.Tuple{Src: src, Dst: netip.AddrPortFrom(version(0).Ports[0].Frontends[0].Addr, 80)},
			Reply: conntrack.Tuple{Src: stale, Dst: src},
		})
		table.mu.Unlock()
		c.begin()
		c.committed(nil, flowNote{old: version(1), new: version(2)})
		c.close()
		if _, cut := table.cut[stale]; !cut {
			t.Error("a stale flow is left when the process ends")
		}
	})
}

// TestFailuresAreTriedAgain lets the kernel's table fail for some time: in every second the flows are looked at again, those of
// changed services and those of a gap, and the log says so once.
func TestFailuresAreTriedAgain(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOBUFS, syscall.EINTR, syscall.EPERM, syscall.EMSGSIZE} {
		for _, op := range []string{"list", "delete"} {
			t.Run(op+" "+unix.ErrnoName(errno), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failForAWhile(t, op, fmt.Errorf("%s: %w", op, errno)) })
			})
		}
	}
}

func failForAWhile(t *testing.T, op string, failure error) {
	const outage = 10 * time.Second
	udp := serviceOf("dns", clusterIPPort(state.IPv4, state.UDP, 1, endpointsOf(state.IPv4, 1, 1)))
	tcp := serviceOf("web", clusterIPPort(state.IPv6, state.TCP, 1, endpointsOf(state.IPv6, 1, 1)))
	none := serviceOf("dns", clusterIPPort(state.IPv4, state.UDP, 1, nil))
	to := func(s *state.Service, client string, from netip.AddrPort) conntrack.Flow {
		p := &s.Ports[0]
		src, dst := netip.MustParseAddrPort(client), netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port)
		if !from.IsValid() {
			from = dst
		}
		return conntrack.Flow{
			Family: p.Family, Protocol: p.Protocol, Unconnected: p.Protocol == state.TCP,
			Orig: conntrack.Tuple{Src: src, Dst: dst}, Reply: conntrack.Tuple{Src: from, Dst: src},
		}
	}
	table := &timedTable{took: 10 * time.Millisecond, cut: map[netip.AddrPort]time.Time{}, flows: []conntrack.Flow{
		to(udp, "10.244.9.9:1024", udp.Ports[0].Internal.Inside.Endpoints[0].Addr),
		to(tcp, "[fd00:244::9]:1024", netip.AddrPort{}),
	}}
	if op == "list" {
		table.listErr = failure
	} else {
		table.deleteErr = failure
	}
	var log strings.Builder
	c := newFlowCutter(table, slog.New(slog.NewTextHandler(&log, nil)))
	c.start()
	defer c.close()
	c.begin()
	c.committed(nil, flowNote{all: []*state.Service{udp, tcp}, gap: true})
	time.Sleep(outage / 2)
	c.begin()
	c.committed(nil, flowNote{old: udp, new: none})
	time.Sleep(outage / 2)
	synctest.Wait()
	if len(table.flows) != 2 {
		t.Fatalf("%d flows are left while nothing works, want 2", len(table.flows))
	}
	if n := len(table.began); n < 2*9 || n > 2*12 {
		t.Errorf("%d listings in %v, want two in a second", n, outage)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), failure.Error()) {
		t.Errorf("%d warnings, want one with %q:\n%s", n, failure, log.String())
	}
	table.mu.Lock()
	table.listErr, table.deleteErr = nil, nil
	table.mu.Unlock()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if len(table.flows) != 0 {
		t.Errorf("left: %v", table.flows)
	}
	looks := len(table.began)
	time.Sleep(time.Hour)
	if len(table.began) != looks {
		t.Errorf("%d more looks after all was done", len(table.began)-looks)
	}
}
