package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// BalanceOptions are how much [Balance] measures. The zero value is useful.
type BalanceOptions struct {
	// Rounds is how often everything is measured. Default: 40.
	Rounds int
	// Packets is the number of packets of each measurement, each of another connection unless they are repeated. Default: 5,000.
	Packets int
}

// balanceCase is a node whose packets are measured.
type balanceCase struct {
	name string
	// against is the case to compare with, empty for none.
	against  string
	services []*state.Service
	packets  packets
}

// packets are what clients send to the frontend.
type packets struct {
	// flags are the flags of TCP. 0 stands for datagrams of UDP.
	flags byte
	// manyHosts has each connection come from another client. repeated has all packets belong to one connection.
	manyHosts, repeated bool
}

// The flags of TCP that a dataplane may look at.
const (
	syn = 1 << 1
	ack = 1 << 4
)

// balanceChanges is how many changes of weights are measured.
const balanceChanges = 60

// Balance measures what weights and hashes cost the first packets of connections in mode nftables, and what ejection costs all packets. The packets are
// to Services that use them, or to others on the node.
// A figure is the processor time of the thread that sends, for the least of all rounds, as a ratio to a Service without them. It also measures changes of
// a weight, and of one endpoint of 40 with a hash. Cases are measured in turn, so that other work on the machine meets all of them.
func Balance(ctx context.Context, r *Reporter, o BalanceOptions) error {
	setDefault(&o.Rounds, 40)
	setDefault(&o.Packets, 5_000)
	cases := balanceCases()
	least := make(map[string]float64, len(cases))
	for range o.Rounds {
		// In a random order: while one case runs, the kernel still clears away the connections of the case before.
		for _, i := range rand.Perm(len(cases)) {
			c := &cases[i]
			took, err := onePacket(ctx, c, o.Packets)
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
		f.report("packet/"+c.name, math.Round(least[c.name]), "ns")
	}
	for _, c := range cases {
		if c.against != "" {
			f.report("ratio/"+c.name, math.Round(1000*least[c.name]/least[c.against])/1000, "of "+c.against)
		}
	}
	return changeShares(ctx, f)
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
	var each packets
	clients := packets{manyHosts: true}
	list := []balanceCase{
		{class5, "", only(five), each},
		{class5 + "-again", class5, only(five), each},
		{class5 + "-next-to-weights", class5, only(five, weighted), each},
		{class5 + "-next-to-refused-share", class5, only(five, refusing), each},
		{class5 + "-next-to-hash", class5, only(five, hashed), each},
		{one, "", only(single), each},
		{one + "-next-to-weights", one, only(single, weighted), each},
		{one + "-next-to-refused-share", one, only(single, refusing), each},
		{one + "-next-to-hash", one, only(single, hashed), each},
		{"weights-64", class5, only(measured(state.Random, 0, 32, 16, 8, 4, 4)), each},
		{"weights-256", class5, only(measured(state.Random, 0, 251, 2, 1, 1, 1)), each},
		{class5 + "-many-clients", "", only(five), clients},
		{"hash-client", class5 + "-many-clients", only(measured(state.HashClient, 0, 0, 0, 0, 0, 0)), clients},
		{"hash-connection", class5, only(measured(state.HashConnection, 0, 0, 0, 0, 0, 0)), each},
	}
	for _, k := range []struct {
		name string
		packets
	}{
		{"first-datagram", each}, {"datagram", packets{repeated: true}},
		{"first-syn", packets{flags: syn}}, {"repeated-syn", packets{flags: syn, repeated: true}}, {"ack", packets{flags: ack, repeated: true}},
	} {
		plain := ofProtocol(five, k.protocol())
		against := class5 + "-" + k.name
		list = append(list, balanceCase{against, "", only(plain), k.packets})
		// Datagrams meet the rules of ejection only next to a Service that has it.
		if k.flags == 0 {
			list = append(list, balanceCase{k.name + "-next-to-ejection", against, only(plain, ejecting(ofProtocol(other(state.Random, 0, 0, 0), state.TCP))), k.packets})
			continue
		}
		list = append(list, balanceCase{"ejection-" + k.name, against, only(ejecting(plain)), k.packets})
	}
	return list
}

func (p *packets) protocol() state.Protocol {
	if p.flags != 0 {
		return state.TCP
	}
	return state.UDP
}

// ofProtocol returns a copy of a service of one port, with another protocol.
func ofProtocol(s *state.Service, p state.Protocol) *state.Service {
	with := *s
	with.Ports = slices.Clone(s.Ports)
	with.Ports[0].Protocol = p
	return &with
}

// ejecting returns a copy of a service of one port, with ejection.
func ejecting(s *state.Service) *state.Service {
	with := ofProtocol(s, state.TCP)
	with.Ports[0].Ejection = true
	return with
}

// onePacket sends packets from a node, out of a device that nobody listens at, and returns the nanoseconds of one.
func onePacket(ctx context.Context, c *balanceCase, count int) (nanos float64, err error) {
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
		took, err := c.packets.send(count)
		nanos = float64(took.Nanoseconds()) / float64(count)
		return err
	})
}

// send sends packets to the frontend, and returns the processor time of this thread. Unless they are repeated, each is from another port or from another
// client.
func (p *packets) send(count int) (took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// An IPv4 header, UDP's or TCP's, and no payload. The kernel fills in the header's checksum and the identification, and checks no other for packets
	// that leave.
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
	if p.flags != 0 {
		packet = append(packet, make([]byte, 12)...)
		packet[3], packet[9], packet[25] = 40, 6, 0
		packet[32], packet[33], packet[34] = 5<<4, p.flags, 0xff
	}
	to := &unix.SockaddrInet4{Addr: balanceFrontend.Addr().As4()}
	copy(packet[16:], to.Addr[:])
	binary.BigEndian.PutUint16(packet[22:], balanceFrontend.Port())
	before, err := threadTime()
	if err != nil {
		return 0, err
	}
	for i := range count {
		if p.repeated {
			i = 0
		}
		if p.manyHosts {
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

// changeShares measures changes of one weight in class 256, and of one endpoint in a table of hashes with 4,093 slots. The node has other Services.
func changeShares(ctx context.Context, f figures) (err error) {
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
	if _, err := d.backend.Apply(ctx, first); err != nil {
		return err
	}
	changing := func(by state.Balance, weights ...uint16) *state.Service {
		return balanced("changing", balanceFrontend, by, 0, weights...)
	}
	weighted := changing(state.Random, 251, 1, 1, 1, 2)
	for _, c := range []struct {
		name          string
		before, after *state.Service
	}{
		{"weight-change-class-256", weighted, changing(state.Random, 251, 2, 1, 1, 1)},
		{"weights-exchanged-class-256", weighted, changing(state.Random, 1, 251, 1, 1, 2)},
		{"endpoint-change-hash-4093", changing(state.HashClient, make([]uint16, 40)...), changing(state.HashClient, make([]uint16, 39)...)},
	} {
		// The first change is not measured, because it replaces tables of another kind.
		changes := []*state.Service{c.before}
		for range balanceChanges / 2 {
			changes = append(changes, c.after, c.before)
		}
		took, err := timeEach(ctx, d.backend, first.Node, changes)
		if err != nil {
			return err
		}
		f.times(c.name, took[1:], "us")
	}
	return nil
}
