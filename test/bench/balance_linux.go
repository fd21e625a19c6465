package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// BalanceOptions are how much [Balance] measures. The zero value is useful.
type BalanceOptions struct {
	// Rounds is how often everything is measured. Default: 40.
	Rounds int
	// Packets is the number of connections of each measurement. Default: 5,000.
	Packets int
}

// balanceCase is a node whose first packets are measured.
type balanceCase struct {
	name string
	// against is the case to compare with, empty for none.
	against  string
	services []*state.Service
	// manyHosts has each connection come from another client.
	manyHosts bool
}

// balanceChanges is how many changes of weights are measured.
const balanceChanges = 60

// Balance measures what weights and hashes cost the first packets of connections in mode nftables. The packets are to Services that use them, or to
// others on the node.
// A figure is the processor time of the thread that sends, for the least of all rounds, as a ratio to a Service without them. It also measures changes of
// a weight. Cases are measured in turn, so that other work on the machine meets all of them.
func Balance(ctx context.Context, r *Reporter, o BalanceOptions) error {
	setDefault(&o.Rounds, 40)
	setDefault(&o.Packets, 5_000)
	cases := balanceCases()
	least := make(map[string]float64, len(cases))
	for range o.Rounds {
		for _, c := range cases {
			took, err := firstPackets(ctx, &c, o.Packets)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if was, measured := least[c.name]; !measured || took < was {
				least[c.name] = took
			}
		}
	}
	f := figures{r, "balance", 1, 5}
	for _, c := range cases {
		f.report("first-packet/"+c.name, math.Round(least[c.name]), "ns")
	}
	for _, c := range cases {
		if c.against != "" {
			f.report("ratio/"+c.name, math.Round(1000*least[c.name]/least[c.against])/1000, "of "+c.against)
		}
	}
	return changeWeights(ctx, f)
}

// balanceFrontend is where connections go.
var balanceFrontend = netip.MustParseAddrPort("203.0.113.1:80")

// balanced returns a service with one frontend.
func balanced(name string, frontend netip.AddrPort, by state.Balance, refused uint32, weights ...uint16) *state.Service {
	to := state.Route{Verdict: state.Forward, Refused: refused}
	for i, w := range weights {
		to.Endpoints = append(to.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)}), 8080), Weight: w})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "bench", Name: name}, Ports: []state.Port{{
		Name: "p", Protocol: state.UDP, Family: state.IPv4, Balance: by,
		Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: frontend.Addr(), Port: frontend.Port()}},
		External:  state.Traffic{Inside: to, Outside: to},
	}}}
}

func balanceCases() []balanceCase {
	measured := func(by state.Balance, refused uint32, weights ...uint16) *state.Service {
		return balanced("measured", balanceFrontend, by, refused, weights...)
	}
	other := func(by state.Balance, refused uint32, weights ...uint16) *state.Service {
		return balanced("other", netip.AddrPortFrom(balanceFrontend.Addr().Next(), 80), by, refused, weights...)
	}
	const class5, one = "class-5", "one-endpoint"
	five, single := measured(state.Random, 0, 0, 0, 0, 0, 0), measured(state.Random, 0, 0)
	hashed, weighted, refusing := other(state.HashClient, 0, 0, 0, 0, 0, 0), other(state.Random, 0, 1, 255), other(state.Random, 20, 80)
	only := func(s ...*state.Service) []*state.Service { return s }
	return []balanceCase{
		{class5, "", only(five), false},
		{class5 + "-again", class5, only(five), false},
		{class5 + "-beside-weights", class5, only(five, weighted), false},
		{class5 + "-beside-refused-share", class5, only(five, refusing), false},
		{class5 + "-beside-hash", class5, only(five, hashed), false},
		{one, "", only(single), false},
		{one + "-beside-weights", one, only(single, weighted), false},
		{one + "-beside-refused-share", one, only(single, refusing), false},
		{one + "-beside-hash", one, only(single, hashed), false},
		{"weights-64", class5, only(measured(state.Random, 0, 32, 16, 8, 4, 4)), false},
		{"weights-256", class5, only(measured(state.Random, 0, 251, 2, 1, 1, 1)), false},
		{class5 + "-many-clients", "", only(five), true},
		{"hash-client", class5 + "-many-clients", only(measured(state.HashClient, 0, 0, 0, 0, 0, 0)), true},
		{"hash-connection", class5, only(measured(state.HashConnection, 0, 0, 0, 0, 0, 0)), false},
	}
}

// firstPackets sends the first datagrams of connections from a node, out of a device that nobody listens at, and returns the nanoseconds of one.
func firstPackets(ctx context.Context, c *balanceCase, packets int) (nanos float64, err error) {
	d, err := newDataplane(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.ns.Outward("192.0.2.1/24"); err != nil {
		return 0, err
	}
	if _, err := d.backend.Apply(ctx, &state.Update{Full: true, Revision: 1, Node: &state.Node{Name: "bench"}, Changed: c.services}); err != nil {
		return 0, err
	}
	return nanos, d.ns.Do(func() error {
		took, err := sendDatagrams(packets, c.manyHosts)
		nanos = float64(took.Nanoseconds()) / float64(packets)
		return err
	})
}

// sendDatagrams sends datagrams to the frontend, each from another port or from another client, and returns the processor time of this thread.
func sendDatagrams(count int, manyHosts bool) (took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// An IPv4 header, UDP's, and no payload. The kernel fills in the checksum and the identification.
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
	to := &unix.SockaddrInet4{Addr: balanceFrontend.Addr().As4()}
	copy(packet[16:], to.Addr[:])
	binary.BigEndian.PutUint16(packet[22:], balanceFrontend.Port())
	before, err := threadTime()
	if err != nil {
		return 0, err
	}
	for i := range count {
		if manyHosts {
			binary.BigEndian.PutUint16(packet[14:], uint16(i))
		}
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
		if err := unix.Sendto(fd, packet, 0, to); err != nil {
			return 0, os.NewSyscallError("sendto", err)
		}
	}
	after, err := threadTime()
	return after - before, err
}

// threadTime returns the processor time that the calling thread has taken.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), os.NewSyscallError("clock_gettime", err)
}

// changeWeights measures changes of one weight in class 256, on a node with other Services.
func changeWeights(ctx context.Context, f figures) (err error) {
	const others = 1000
	f.services = others
	first, _, err := records(ctx, brain.Config{}, others, f.endpoints)
	if err != nil {
		return err
	}
	d, err := newDataplane(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	changing := func(weights ...uint16) *state.Service {
		return balanced("changing", balanceFrontend, state.Random, 0, weights...)
	}
	before := changing(251, 1, 1, 1, 2)
	first.Changed = append(first.Changed, before)
	if _, err := d.backend.Apply(ctx, first); err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		after *state.Service
	}{{"weight-change-class-256", changing(251, 2, 1, 1, 1)}, {"weights-exchanged-class-256", changing(1, 251, 1, 1, 2)}} {
		var changes []*state.Service
		for range balanceChanges / 2 {
			changes = append(changes, c.after, before)
		}
		took, err := timeEach(ctx, d.backend, first.Node, changes)
		if err != nil {
			return err
		}
		f.times(c.name, took, "us")
	}
	return nil
}
