package edge_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestStories plays the stories in directory stories, with each family between nodes. The README of the package has their language.
func TestStories(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		cmds := map[string]func(*testscript.TestScript, bool, []string){}
		for name, run := range commands() {
			cmds[name] = func(ts *testscript.TestScript, _ bool, args []string) {
				if err := run(ts.Value(storyKey{}).(*story), args); err != nil {
					ts.Fatalf("%s: %v", name, err)
				}
			}
		}
		testscript.Run(t, testscript.Params{
			Dir: "stories", RequireUniqueNames: true, Cmds: cmds,
			Condition: func(cond string) (bool, error) { return cond == strings.ToLower(between.String()), nil },
			Setup: func(env *testscript.Env) error {
				env.Values[storyKey{}] = &story{t: env.T().(testing.TB), family: between, flows: map[string][]*flows{}, counted: map[string]edge.Stats{}}
				return nil
			},
		})
	})
}

type storyKey struct{}

// story is what a running story knows.
type story struct {
	*lab
	t       testing.TB
	family  state.Family
	flows   map[string][]*flows
	counted map[string]edge.Stats // at the last command count, by node
}

// command is one command of the language. An error fails the story, and so does the lab.
type command func(s *story, args []string) error

func commands() map[string]command {
	list := map[string]command{
		"lab": (*story).begin, "on": (*story).turnOn, "off": (*story).turnOff, "shares": (*story).change, "withdraw": (*story).withdraw, "frontend": (*story).frontend,
		"via":       func(s *story, args []string) error { s.via(args[0]); return nil },
		"flush":     func(s *story, args []string) error { s.lab.flush(args[0]); return nil },
		"link":      (*story).link,
		"mtu":       (*story).mtu,
		"checksums": (*story).whoseChecksums,
		"serve":     (*story).serveAt,
		"pause":     (*story).pause,
		"connect":   (*story).connectTo,
		"again":     (*story).again,
		"open":      (*story).openTo,
		"turn":      (*story).turn,
		"end":       (*story).end,
		"datagrams": (*story).datagrams,
		"streams":   (*story).streams,
		"count":     (*story).count,
		"tracked":   (*story).tracks,
	}
	list["soon"] = func(s *story, args []string) (err error) { // COMMAND [; COMMAND...], again and again until all succeed
		await.Until(s.t, strings.Join(args, " "), func() bool {
			err = nil
			for line := range strings.SplitSeq(strings.Join(args, " "), " ; ") {
				if words := strings.Fields(line); err == nil {
					err = list[words[0]](s, words[1:])
				}
			}
			return err == nil
		}, func() any { return err })
		return nil
	}
	return list
}

// begin: lab POD...
func (s *story) begin(args []string) error {
	s.lab = newLab(s.t, s.family, args...)
	return nil
}

// sharesIn reads NODE=WEIGHT... [at=NODE,...], where at stands for all nodes if it is absent.
func sharesIn(args []string) (shares map[string]uint32, at []string, err error) {
	shares, at = map[string]uint32{}, nodeNames
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		if key == "at" {
			at = strings.Split(value, ",")
			continue
		}
		weight, err := strconv.ParseUint(value, 10, 32)
		if err != nil || !slices.Contains(nodeNames, key) {
			return nil, nil, fmt.Errorf("%q: use NODE=WEIGHT... [at=NODE,...]", arg)
		}
		shares[key] = uint32(weight)
	}
	return shares, at, nil
}

// turnOn: on [NODE=WEIGHT...] [at=NODE,...]
func (s *story) turnOn(args []string) error {
	shares, at, err := sharesIn(args)
	if len(shares) > 0 {
		s.shares = shares
	}
	for _, node := range at {
		s.edge(node)
	}
	s.settle()
	return err
}

// turnOff: off NODE...
func (s *story) turnOff(args []string) (err error) {
	for _, node := range args {
		err = errors.Join(err, s.edges[node].Close())
		delete(s.edges, node)
	}
	return err
}

// change: shares NODE=WEIGHT... [at=NODE,...]
func (s *story) change(args []string) error {
	shares, at, err := sharesIn(args)
	s.apply(shares, at...)
	return err
}

// withdraw: withdraw
func (s *story) withdraw([]string) (err error) {
	for node, e := range s.edges {
		without := service(s.shares)
		for i := range without.Ports {
			without.Ports[i].Edge.Shares = nil
		}
		err = errors.Join(err, e.Apply(&state.Update{Node: s.node(node, nodeNames...), Changed: []*state.Service{without}}, nil))
		if status := e.Status(); status.Ports != 0 || status.Draining == 0 {
			err = errors.Join(err, fmt.Errorf("node %s: %+v", node, status))
		}
	}
	return err
}

// frontend: frontend add|remove ADDRESS:PORT
func (s *story) frontend(args []string) (err error) {
	to, err := netip.ParseAddrPort(args[1])
	owner := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "owner"}, Ports: []state.Port{{
		Protocol: state.TCP, Family: state.FamilyOf(to.Addr()), Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: to.Addr(), Port: to.Port()}},
	}}}
	for node, e := range s.edges {
		u := &state.Update{Node: s.node(node), Changed: []*state.Service{owner}}
		if args[0] == "remove" {
			u = &state.Update{Node: s.node(node), Removed: []state.ServiceName{owner.Name}}
		}
		err = errors.Join(err, e.Apply(u, nil))
	}
	return err
}

// link: link down|up NODE
func (s *story) link(args []string) error {
	nl, dev := s.hosts["switch"].nl, s.device("switch", args[1])
	if args[0] == "down" {
		return nl.LinkSetDown(dev)
	}
	return nl.LinkSetUp(dev)
}

// mtu: mtu HOST DEVICE BYTES
func (s *story) mtu(args []string) error {
	bytes, err := strconv.Atoi(args[2])
	s.setMTU(args[0], args[1], bytes)
	return err
}

// whoseChecksums: checksums own|device
func (s *story) whoseChecksums(args []string) error {
	s.lab.checksums("client", "eth0", args[0] == "own")
	return nil
}

// serveAt: serve NODE PORT
func (s *story) serveAt(args []string) error {
	port, err := strconv.Atoi(args[1])
	s.serve(args[0], port)
	return err
}

// pause: pause DURATION
func (s *story) pause(args []string) error {
	d, err := time.ParseDuration(args[0])
	time.Sleep(d)
	return err
}

// resolve returns the addresses that NODE:PORT, vip:PORT or ADDRESS:PORT stand for, with commas in between.
func resolve(text string) (list []netip.AddrPort, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if to, err := netip.ParseAddrPort(item); err == nil {
			list = append(list, to)
			continue
		}
		name, number, _ := strings.Cut(item, ":")
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || name != "vip" && !slices.Contains(nodeNames, name) {
			return nil, fmt.Errorf("destination %q: use vip:PORT, NODE:PORT or ADDRESS:PORT", item)
		}
		addrs := vips
		if name != "vip" {
			addrs = nodeIPs(name)
		}
		for _, addr := range addrs {
			list = append(list, at(addr, uint16(port)))
		}
	}
	return list, nil
}

// connectTo: connect FROM PROTO[,PROTO] TO[,TO] reaches A,B [source=kept|node] [by-slot] [xN] [within=DURATION]
//
// All connections to each address are answered, each of the hosts answers some, and no other does. As many are made as it takes, or N of them.
func (s *story) connectTo(args []string) error {
	to, err := resolve(args[2])
	if err != nil {
		return err
	}
	least, within, source, bySlot := 6, patience, "", false
	var servers []string
	for i := 3; i < len(args) && err == nil; i++ {
		switch key, value, _ := strings.Cut(args[i], "="); {
		case key == "reaches":
			i++
			servers = strings.Split(args[i], ",")
		case key == "source":
			source = value
		case key == "by-slot":
			bySlot = true
		case key == "within":
			within, err = time.ParseDuration(value)
		default:
			least, err = strconv.Atoi(strings.TrimPrefix(key, "x"))
		}
	}
	if err != nil {
		return err
	}
	for network := range strings.SplitSeq(args[1], ",") {
		for _, dst := range to {
			seen := map[string]int{}
			for n := 0; n < least || len(seen) < len(servers); n++ {
				r, err := s.askWithin(args[0], network, dst, within)
				if err == nil && (source != "" && r.kept() != (source == "kept") || !slices.Contains(servers, r.server)) {
					err = errors.New("that is not expected")
				}
				if err == nil && bySlot { // all nodes agree on the slot, and programs on what this process computes
					protocol := map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP}[network]
					if slot, ok := s.edges["a"].Slot(protocol, r.local, dst); !ok || slot.Owner != cmp.Or(podNodes[r.server], r.server) {
						err = fmt.Errorf("the slot is %+v", slot)
					}
				}
				if err == nil && n > 400 {
					err = fmt.Errorf("only %v have answered", seen)
				}
				if err != nil {
					return fmt.Errorf("%s to %v, connection %d: %+v: %w", network, dst, n+1, r, err)
				}
				seen[r.server]++
			}
		}
	}
	return nil
}

func (s *story) askWithin(from, network string, to netip.AddrPort, within time.Duration) (reply, error) {
	conn, err := s.dial(from, network, to)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	return exchangeFor(conn, []byte("hello\n"), within)
}

// again: again PORT
//
// The client connects from the port, and resets the connection after an answer.
func (s *story) again(args []string) error {
	port, err := strconv.ParseUint(args[0], 10, 16)
	s.askFrom(at(clientIPs[0], uint16(port)))
	return err
}

// openTo: open NAME PROTO TO[,TO] xN
func (s *story) openTo(args []string) error {
	to, err := resolve(args[2])
	n, err2 := strconv.Atoi(strings.TrimPrefix(args[3], "x"))
	for _, dst := range to {
		s.flows[args[0]] = append(s.flows[args[0]], s.open(args[1], dst, n))
	}
	return errors.Join(err, err2)
}

// turn: turn N
func (s *story) turn(args []string) error {
	n, err := strconv.Atoi(args[0])
	for _, list := range s.flows {
		for _, f := range list {
			f.turn(n)
		}
	}
	return err
}

// end: end NAME [A,B]
//
// The flows end, and nothing was wrong with them: none was lost, and each stayed with its server, which is one of the named ones.
func (s *story) end(args []string) error {
	for _, f := range s.flows[args[0]] {
		f.end(args[0])
		if got := slices.Sorted(maps.Keys(f.servers)); len(args) > 1 && strings.Join(got, ",") != args[1] {
			return fmt.Errorf("%v answered, want %s", f.servers, args[1])
		}
	}
	delete(s.flows, args[0])
	return nil
}

// overhead is how many bytes an outer packet has more than the inner one.
func (s *story) overhead() int { return map[state.Family]int{state.IPv4: 36, state.IPv6: 56}[s.family] }

// datagrams: datagrams TO[,TO] BYTES[,BYTES] whole|split|fragments|too-large
//
// BYTES are a number, or most, which just fits into one packet, or most+1.
func (s *story) datagrams(args []string) error {
	to, err := resolve(args[0])
	for _, dst := range to {
		for size := range strings.SplitSeq(args[1], ",") {
			most := 1500 - s.overhead() - map[bool]int{true: 28, false: 48}[dst.Addr().Is4()]
			n := map[string]int{"most": most, "most+1": most + 1}[size]
			if n == 0 {
				n, err = strconv.Atoi(size)
			}
			if args[2] == "fragments" {
				s.inFragments(dst.Addr(), append([]byte("BIG"), bytes.Repeat([]byte("x"), n-3)...))
				continue
			}
			for range 6 {
				err = errors.Join(err, s.datagram(dst, n, args[2]))
			}
		}
	}
	return err
}

func (s *story) datagram(to netip.AddrPort, size int, how string) error {
	conn, err := s.dial("client", "udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	setDiscovery(s.t, conn, map[string]int{"whole": unix.IP_PMTUDISC_DO, "too-large": unix.IP_PMTUDISC_DO, "split": unix.IP_PMTUDISC_OMIT}[how])
	message := bytes.Repeat([]byte("x"), size)
	if how != "too-large" {
		r, err := exchange(conn, message)
		if err == nil && r.bytes == size && r.kept() {
			return nil
		}
		return fmt.Errorf("%d bytes to %v: %+v, %w", size, to, r, err)
	}
	for range 10 { // the socket learns of it by the error, and each socket to the address knows it from then on
		if _, err = exchangeFor(conn, message, 300*time.Millisecond); errors.Is(err, unix.EMSGSIZE) {
			return nil
		}
	}
	return fmt.Errorf("%d bytes to %v: %w, want that they are too many", size, to, err)
}

// streams: streams TO[,TO] BYTES [answered] [clamped]
//
// Four connections to each address send that much, and their servers answer as much. Or their segments just fit into a packet between nodes.
func (s *story) streams(args []string) error {
	to, err := resolve(args[0])
	size, err2 := strconv.Atoi(args[1])
	line := append(bytes.Repeat([]byte("x"), size), '\n')
	if slices.Contains(args, "answered") {
		copy(line, "BIG")
	}
	err = errors.Join(err, err2)
	for _, dst := range to {
		for range 4 {
			conn, dialErr := s.dial("client", "tcp", dst)
			if dialErr != nil {
				return dialErr
			}
			defer conn.Close()
			if r, asked := exchange(conn, line); asked != nil || r.bytes != len(line) || !r.kept() {
				err = errors.Join(err, fmt.Errorf("%v: %+v, %w", dst, r, asked))
			}
			want := 1500 - s.overhead() - map[bool]int{true: 20, false: 40}[dst.Addr().Is4()] - 20 - 12 // 12: timestamps
			if got := sendSize(s.t, conn); slices.Contains(args, "clamped") && got != want {
				err = errors.Join(err, fmt.Errorf("%v: segments of %d bytes, want %d", dst, got, want))
			}
		}
	}
	return err
}

// count: count NODE [ACTION[,ACTION] more|same]
//
// The node has done this with packets since the last such command about it, or has not.
func (s *story) count(args []string) error {
	node, now := args[0], s.stats(args[0])
	defer func() { s.counted[node] = now }()
	if len(args) == 1 {
		return nil
	}
	for name := range strings.SplitSeq(args[1], ",") {
		action := programs.Action(0)
		for action < programs.Actions && action.String() != name {
			action++
		}
		if action == programs.Actions || (now[action] > s.counted[node][action]) != (args[2] == "more") {
			return fmt.Errorf("%s: %v, before %v", name, now, s.counted[node])
		}
	}
	return nil
}

// tracks: tracked NODE N
func (s *story) tracks(args []string) error {
	if n := s.tracked(args[0]); strconv.Itoa(n) != args[1] {
		return fmt.Errorf("the node tracks %d connections", n)
	}
	return nil
}
