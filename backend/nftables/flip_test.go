//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// flipper is a frontend that changes between two states, as fast as it can.
type flipper struct {
	backend  *Backend
	lab      *topology.Lab
	frontend state.Frontend
	dst      netip.AddrPort
	// pause is the time between two changes.
	pause time.Duration
}

func newFlipper(t *testing.T, frontend state.Frontend, pods ...topology.PodOptions) *flipper {
	t.Helper()
	l := netnstest.Lab(t, topology.Options{})
	f := &flipper{lab: l, frontend: frontend, dst: netip.AddrPortFrom(frontend.Addr, frontend.Port)}
	if frontend.Kind == state.NodePort {
		f.dst = netip.AddrPortFrom(nodeAddr(state.IPv4), frontend.Port)
	}
	for _, o := range pods {
		pod, err := l.AddPod(o)
		if err == nil {
			err = pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), o.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Node().Do(func() (err error) { f.backend, err = New(t.Context(), Options{}); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBackend(f.backend) })
	return f
}

// patience is how long a connection may take on a busy machine. That a packet falls through shows in what is sent again.
const patience = 20 * time.Second

// sentAgain is how many segments the client's kernel has retransmitted so far, also for connections that were refused in the end.
func (f *flipper) sentAgain(t *testing.T) (n int) {
	t.Helper()
	err := f.lab.Client().Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if fields[0] != "Tcp:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			n, err = strconv.Atoi(fields[slices.Index(names, "RetransSegs")])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// route leads to pods.
func (f *flipper) route(pods ...string) state.Route {
	var eps []state.Endpoint
	for _, name := range pods {
		eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(f.lab.Pod(name).Addrs[0], 8080)})
	}
	return forward(eps)
}

// run changes between external and other, and connects from outside at the same time. It returns the outcomes of the connections.
func (f *flipper) run(t *testing.T, external, other state.Traffic, check func(topology.Answer) bool) (outcomes map[topology.Outcome]int) {
	t.Helper()
	var updates []*state.Update
	for _, traffic := range []state.Traffic{external, other} {
		updates = append(updates, delta(serviceOf("flipping", state.Port{
			Name: "p", Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{f.frontend}, External: traffic,
		})))
	}
	apply(t, f.backend, updates[0])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	changes := 0
	wg.Go(func() {
		defer cancel()
		// On a busy machine it takes longer until enough has happened to mean anything.
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) || changes < 100; changes++ {
			if _, err := f.backend.Apply(context.Background(), updates[(changes+1)%2]); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(f.pause)
		}
	})
	outcomes = map[topology.Outcome]int{}
	before := f.sentAgain(t)
	for ctx.Err() == nil {
		a := f.lab.Client().Probe(context.Background(), state.TCP, f.dst, topology.ProbeOptions{Timeout: patience})
		outcomes[a.Outcome]++
		if !check(a) {
			t.Errorf("%v by %q after %v: %v", a.Outcome, a.Server, a.Latency, a.Err)
		}
	}
	wg.Wait()
	if n := f.sentAgain(t) - before; n > 0 {
		t.Errorf("the client had to send %d packets again: nobody answered them", n)
	}
	t.Logf("%d changes, connections: %v", changes, outcomes)
	return outcomes
}

// TestFlip gives a service its first endpoint and takes it away, as fast as it can. A connection is answered or refused: it must
// not fall through between the two, which would be silence, as nobody else has the address.
func TestFlip(t *testing.T) {
	f := newFlipper(t, state.Frontend{Kind: state.ExternalIP, Addr: addr("198.51.100.1"), Port: 80}, topology.PodOptions{Name: "server"})
	without, with := f.route(), f.route("server")
	outcomes := f.run(t, state.Traffic{Inside: without, Outside: without, Masquerade: state.MasqueradeAlways},
		state.Traffic{Inside: with, Outside: with, Masquerade: state.MasqueradeAlways},
		func(a topology.Answer) bool { return a.Outcome == topology.Answered || a.Outcome == topology.Refused })
	if outcomes[topology.Answered] == 0 || outcomes[topology.Refused] == 0 {
		t.Error("too little happened to mean anything")
	}
}

// TestFlipPolicy changes a service between the external traffic policies Cluster and Local. A connection from outside goes by
// the one or the other: it must not reach an endpoint that neither of them has for it, nor one elsewhere under its own address,
// whose answer would come from a stranger. Some hundred rules that match nothing stand between the decisions, to make the time
// long in which a commit can come in between, though not two: what a packet finds then may be nothing, as ADR 6 says.
func TestFlipPolicy(t *testing.T) {
	nodePort := state.Frontend{Kind: state.NodePort, Port: 30080}
	pods := []topology.PodOptions{{Name: "near"}, {Name: "inside-only"}, {Name: "far", OtherNode: true}}
	for name, test := range map[string]struct {
		cluster, local, inside string
		want                   []string
	}{
		"to other endpoints for clients inside": {cluster: "near", local: "near", inside: "inside-only", want: []string{"near"}},
		"to the same endpoints for all clients": {cluster: "far", local: "near", inside: "near", want: []string{"near", "far"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlipper(t, nodePort, pods...)
			f.pause = time.Millisecond
			slow := serviceOf("slow")
			for i := range 400 {
				p := clusterIPPort(state.IPv4, state.TCP, i, endpointsOf(state.IPv4, 0, 1))
				p.Affinity = time.Duration(i+1) * time.Second
				slow.Ports = append(slow.Ports, p)
			}
			apply(t, f.backend, full(serviceOf("slow", slow.Ports...)))
			to := f.route(test.cluster)
			outcomes := f.run(t, state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeAlways},
				state.Traffic{Inside: f.route(test.inside), Outside: f.route(test.local), Masquerade: state.MasqueradeNode},
				func(a topology.Answer) bool {
					return a.Outcome == topology.Answered && slices.Contains(test.want, a.Server)
				})
			if outcomes[topology.Answered] == 0 {
				t.Error("too little happened to mean anything")
			}
		})
	}
}

// TestPolicyChangeMovesClients: a client from outside is remembered with an endpoint elsewhere, until the policy becomes Local. It
// goes to the endpoint on the node then, at once, and stays with that when the policy changes back.
func TestPolicyChangeMovesClients(t *testing.T) {
	nodePort := state.Frontend{Kind: state.NodePort, Port: 30080}
	f := newFlipper(t, nodePort, topology.PodOptions{Name: "near"}, topology.PodOptions{Name: "far", OtherNode: true})
	update := func(inside, outside state.Route, m state.Masquerade) {
		t.Helper()
		apply(t, f.backend, delta(serviceOf("moving", state.Port{
			Name: "p", Protocol: state.TCP, Family: state.IPv4, Affinity: time.Hour, Frontends: []state.Frontend{nodePort},
			External: state.Traffic{Inside: inside, Outside: outside, Masquerade: m},
		})))
	}
	connects := func(want string) {
		t.Helper()
		for range 8 {
			a := f.lab.Client().Probe(t.Context(), state.TCP, f.dst, topology.ProbeOptions{Timeout: patience})
			if a.Outcome != topology.Answered || a.Server != want {
				t.Fatalf("%v by %q: %v, want an answer by %q", a.Outcome, a.Server, a.Err, want)
			}
		}
	}
	both := f.route("near", "far")
	slices.SortFunc(both.Endpoints, state.Endpoint.Compare)
	apply(t, f.backend, full())
	update(f.route("far"), f.route("far"), state.MasqueradeAlways)
	connects("far")
	update(both, both, state.MasqueradeAlways)
	connects("far")
	update(both, f.route("near"), state.MasqueradeNode)
	connects("near")
	update(both, both, state.MasqueradeAlways)
	connects("near")
}

// TestReplace has a table replaced again and again, as by the next version that has other rules, or after another program has left
// something in it. A packet that is between two rules at the commit goes on by the old rules: what it looks up must still be there.
// Some hundred rules that match nothing make that time long.
func TestReplace(t *testing.T) {
	f := newFlipper(t, state.Frontend{Kind: state.NodePort, Port: 30080}, topology.PodOptions{Name: "server"})
	slow := serviceOf("slow")
	for i := range 400 {
		p := clusterIPPort(state.IPv4, state.TCP, i, endpointsOf(state.IPv4, 0, 1))
		p.Affinity = time.Duration(i+1) * time.Second
		slow.Ports = append(slow.Ports, p)
	}
	to := f.route("server")
	served := state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeAlways}
	all := full(slow, serviceOf("served", state.Port{
		Name: "p", Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{f.frontend}, External: served,
	}))
	closeBackend(f.backend)
	f.backend = newSharedBackend(t, f.lab.Node(), Options{})
	apply(t, f.backend, all)
	var conn *nft.Conn
	if err := f.lab.Node().Do(func() (err error) { conn, err = nft.Dial(); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	replaced, answered := 0, atomic.Int64{}
	wg.Go(func() {
		defer cancel()
		// On a busy machine it takes longer until enough has happened to mean anything.
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) || replaced < 50 || !t.Failed() && answered.Load() < 50; replaced++ {
			commitRaw(t, conn, func(b *nft.Batch) {
				b.AddSet(table(state.IPv4), &nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}})
			})
			f.backend.guard.raise(foreignChange)
			if r, err := f.backend.Verify(context.Background()); err != nil || r.Written == 0 {
				t.Errorf("Verify writes %d objects: %v", r.Written, err)
				return
			}
		}
	})
	outcomes := map[topology.Outcome]int{}
	for ctx.Err() == nil {
		a := f.lab.Client().Probe(context.Background(), state.TCP, f.dst, topology.ProbeOptions{Timeout: patience})
		outcomes[a.Outcome]++
		if a.Outcome != topology.Answered || a.Resent > 0 {
			t.Errorf("%v after %v, %d segments sent again: %v", a.Outcome, a.Latency, a.Resent, a.Err)
		} else {
			answered.Add(1)
		}
	}
	wg.Wait()
	t.Logf("%d replacements, connections: %v", replaced, outcomes)
}
