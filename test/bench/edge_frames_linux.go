package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// edgeLoad is what packets come to the entry node.
type edgeLoad struct {
	name string
	// flows is how many flows the packets belong to in turn, 0 if each belongs to a flow of its own.
	flows int
}

var edgeLoads = []edgeLoad{{"64-flows", 64}, {"50000-flows", 50_000}, {"new-flows", 0}}

const (
	// frameSize is the size of packets with their Ethernet headers.
	frameSize = 64
	// frameWindow is over how many packets a time is taken, a power of 2. Other work on the machine does not interrupt each window.
	frameWindow = 1024
	// frameWait is how long packets may be on their way after the last one was sent.
	frameWait = 50 * time.Millisecond
)

// entryLab is the entry node alone, in a namespace whose packets all leave by one device. A program sends packets into the device as drivers do, and another one
// takes those that leave. All of that happens on the thread that sends.
type entryLab struct {
	closers
	variant string
	ns      *netns.NS
	node    *edgeNode // nil if packets are dropped
	// counts has [counted].
	counts *ebpf.Map
	// generators send the packets of a load each.
	generators []*ebpf.Program
	// least is the time of one packet in nanoseconds, by load.
	least map[string]float64
	// lost is how many packets have not left. Their runs do not count.
	lost uint64
}

// newEntryLab makes an entry node without endpoints. The second node has one.
func newEntryLab(ctx context.Context, variant string) (_ *entryLab, err error) {
	l := &entryLab{variant: variant, least: map[string]float64{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("entry node, %s: %w", variant, err), l.close())
		}
	}()
	if l.ns, err = newEdgeNamespace(); err != nil {
		return nil, err
	}
	l.add(l.ns.Close)
	if variant != entryDropped {
		if l.node, err = openEdgeNode(ctx, l.ns, 0, variant, edgeObjects(state.UDP, 0, 1)); err != nil {
			return nil, err
		}
		l.add(l.node.close)
	}
	return l, l.ns.Do(l.attach)
}

// newEdgeNamespace makes the namespace of a node that forwards packets, with a device that leads nowhere.
func newEdgeNamespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	err = errors.Join(ns.SetSysctls(
		netns.Sysctl{Path: "net/ipv4/ip_forward", Value: "1"}, // first, since it changes others
		netns.Sysctl{Path: "net/ipv4/conf/all/rp_filter", Value: "0"}, netns.Sysctl{Path: "net/ipv4/conf/default/rp_filter", Value: "0"},
		netns.Sysctl{Path: "net/ipv4/conf/all/send_redirects", Value: "0"}, netns.Sysctl{Path: "net/ipv4/conf/default/send_redirects", Value: "0"},
	), ns.Outward(fmt.Sprintf("%v/%d", edgeNodeAddr(0), edgeUnderlay.Bits())))
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// attach attaches the programs that send and take packets. It runs in the namespace.
func (l *entryLab) attach() (err error) {
	device, err := net.InterfaceByName("out")
	if err != nil {
		return err
	}
	wire, err := net.InterfaceByName("peer")
	if err != nil {
		return err
	}
	// A driver does not resolve addresses.
	if err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: device.Index, State: netlink.NUD_PERMANENT, IP: edgeNodeAddr(1).AsSlice(), HardwareAddr: wire.HardwareAddr,
	}); err != nil {
		return fmt.Errorf("neighbour %v: %w", edgeNodeAddr(1), err)
	}
	l.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(counted{})), MaxEntries: 1})
	if err != nil {
		return err
	}
	l.add(l.counts.Close)
	// The device of a node takes what a driver sends only if it has a program. The kernel copies packets of its own for a program, so the sink of these is
	// after the driver.
	const pass, drop, back, shot = 2, 1, 3, 2 // XDP_PASS, XDP_DROP, XDP_TX, TC_ACT_SHOT
	switch l.variant {
	case entryDropped:
		err = l.atDriver(device.Index, l.sink(drop))
	case entryXDP: // the edge has attached its own
		err = l.atDriver(wire.Index, append(answer(0, asm.Mov.Imm(asm.R0, back)), l.sink(drop)...))
	case entryTCX:
		again := []asm.Instruction{asm.Mov.Imm(asm.R1, int32(wire.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call()}
		err = l.afterDriver(wire.Index, append(answer(dataOfSKB, again...), l.sink(shot)...))
	default:
		err = l.afterDriver(wire.Index, l.sink(shot))
	}
	if l.variant == entryToday || l.variant == entryTCX {
		err = errors.Join(err, l.atDriver(device.Index, asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()}))
	}
	if err != nil {
		return err
	}
	for _, load := range edgeLoads {
		p, err := l.program(ebpf.XDP, l.generator(device, wire, load.flows))
		if err != nil {
			return fmt.Errorf("the program that sends packets: %w", err)
		}
		l.generators = append(l.generators, p)
	}
	return nil
}

func (l *entryLab) program(kind ebpf.ProgramType, code asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "MIT", Instructions: code})
	if err == nil {
		l.add(p.Close)
	}
	return p, err
}

func (l *entryLab) atDriver(device int, code asm.Instructions) error {
	p, err := l.program(ebpf.XDP, code)
	if err != nil {
		return err
	}
	at, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: device, Flags: link.XDPDriverMode})
	if err == nil {
		l.add(at.Close)
	}
	return err
}

func (l *entryLab) afterDriver(device int, code asm.Instructions) error {
	p, err := l.program(ebpf.SchedCLS, code)
	if err != nil {
		return err
	}
	at, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: device, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		l.add(at.Close)
	}
	return err
}

// counted is what programs count.
type counted struct {
	// Sent and Left are how many packets were sent, and how many have left.
	Sent, Left uint64
	// Last is when the last window ended, 0 before the first one of a run. Least is the least time of a window in nanoseconds.
	Last, Least uint64
}

// The offsets in [counted].
const sentAt, leftAt, lastAt, leastAt = 0, 8, 16, 24

// sink is a program that counts packets and drops them. It takes the time of each window. The process cannot do that: the kernel waits for some milliseconds
// before and after it sends packets.
func (l *entryLab) sink(drop int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R6, l.counts.FD(), 0).WithSymbol("sink"),
		asm.LoadMem(asm.R7, asm.R6, leftAt, asm.DWord), asm.Add.Imm(asm.R7, 1), asm.StoreMem(asm.R6, leftAt, asm.R7, asm.DWord),
		asm.And.Imm(asm.R7, frameWindow-1), asm.JNE.Imm(asm.R7, 0, "drop"),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R7, asm.R6, lastAt, asm.DWord), asm.StoreMem(asm.R6, lastAt, asm.R0, asm.DWord),
		asm.JEq.Imm(asm.R7, 0, "drop"),
		asm.Sub.Reg(asm.R0, asm.R7),
		asm.LoadMem(asm.R7, asm.R6, leastAt, asm.DWord), asm.JGE.Reg(asm.R0, asm.R7, "drop"),
		asm.StoreMem(asm.R6, leastAt, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return(),
	}
}

// dataOfSKB is where programs find the packet in the context of an skb.
const dataOfSKB = 76

// answer is the beginning of a program that answers probes as the second node would, which is not there. The context has the packet and its end at dataAt. leave
// sends the answer.
func answer(dataAt int16, leave ...asm.Instruction) asm.Instructions {
	const mac, addr, port, checksum, hop = 0, 26, 34, 40, 43 // of the headers of a probe
	exchange := func(a, b int16, size asm.Size) asm.Instructions {
		return asm.Instructions{
			asm.LoadMem(asm.R4, asm.R2, a, size), asm.LoadMem(asm.R5, asm.R2, b, size), asm.StoreMem(asm.R2, a, asm.R5, size), asm.StoreMem(asm.R2, b, asm.R4, size),
		}
	}
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, dataAt, asm.Word), asm.LoadMem(asm.R3, asm.R1, dataAt+4, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, hop+1), asm.JGT.Reg(asm.R4, asm.R3, "sink"),
			asm.LoadMem(asm.R4, asm.R2, hop, asm.Byte), asm.JNE.Imm(asm.R4, programs.HopProbe, "sink"),
		},
		exchange(mac, mac+6, asm.Word), exchange(mac+4, mac+10, asm.Half), exchange(addr, addr+4, asm.Word), exchange(port, port+2, asm.Half),
		asm.Instructions{asm.StoreImm(asm.R2, checksum, 0, asm.Half)}, // there is none
		leave, asm.Instructions{asm.Return()},
	)
}

// A client has so many ports, from the first one on.
const firstClientPort, portsOfClient = 1024, 64_512

// frame is a datagram from 198.18.0.0 (RFC 2544) to the frontend. Its ports and its checksum are yet to be set.
func frame(to, from net.HardwareAddr) []byte {
	f := make([]byte, frameSize)
	copy(f, to)
	copy(f[6:], from)
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	copy(f[14:], []byte{0x45, 0, 0, frameSize - 14, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 198, 18, 0, 0})
	copy(f[30:], edgeFrontend.Addr().AsSlice())
	binary.BigEndian.PutUint16(f[36:], edgeFrontend.Port())
	binary.BigEndian.PutUint16(f[38:], frameSize-34)
	return f
}

// generator is a program that sends one packet: it writes all headers, because the kernel uses the memory of packets again.
func (l *entryLab) generator(device, wire *net.Interface, flows int) (code asm.Instructions) {
	f := frame(device.HardwareAddr, wire.HardwareAddr)
	var sum int32 // of the IP header without the client's address
	for i := 14; i < 34; i += 2 {
		if i != 26 && i != 28 {
			sum += int32(binary.BigEndian.Uint16(f[i:]))
		}
	}
	code = append(code,
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // its end
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, frameSize), asm.JGT.Reg(asm.R4, asm.R3, "drop"),
		asm.LoadMapValue(asm.R5, l.counts.FD(), sentAt),
		asm.LoadMem(asm.R6, asm.R5, 0, asm.DWord),
		asm.Mov.Reg(asm.R7, asm.R6), asm.Add.Imm(asm.R7, 1), asm.StoreMem(asm.R5, 0, asm.R7, asm.DWord),
	)
	if flows > 0 {
		code = append(code, asm.Mod.Imm(asm.R6, int32(flows)))
	}
	for i := 0; i < 44; i += 4 { // up to the payload
		code = append(code, asm.StoreImm(asm.R2, int16(i), int64(int32(binary.NativeEndian.Uint32(f[i:]))), asm.Word))
	}
	const hosts = 1<<17 - 1 // of 198.18.0.0/15
	return append(code,
		asm.Mov.Reg(asm.R7, asm.R6), asm.Div.Imm(asm.R7, portsOfClient), asm.And.Imm(asm.R7, hosts), // the client
		asm.Mod.Imm(asm.R6, portsOfClient), asm.Add.Imm(asm.R6, firstClientPort), // its port
		asm.Mov.Reg(asm.R8, asm.R7), asm.RSh.Imm(asm.R8, 16), asm.Add.Imm(asm.R8, 198<<8+18), asm.And.Imm(asm.R7, 0xffff),
		asm.Mov.Imm(asm.R0, sum), asm.Add.Reg(asm.R0, asm.R8), asm.Add.Reg(asm.R0, asm.R7), // RFC 1071
		asm.Mov.Reg(asm.R4, asm.R0), asm.RSh.Imm(asm.R4, 16), asm.And.Imm(asm.R0, 0xffff), asm.Add.Reg(asm.R0, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R0), asm.RSh.Imm(asm.R4, 16), asm.Add.Reg(asm.R0, asm.R4), asm.Xor.Imm(asm.R0, 0xffff),
		asm.HostTo(asm.BE, asm.R0, asm.Half), asm.StoreMem(asm.R2, 24, asm.R0, asm.Half),
		asm.HostTo(asm.BE, asm.R8, asm.Half), asm.StoreMem(asm.R2, 26, asm.R8, asm.Half),
		asm.HostTo(asm.BE, asm.R7, asm.Half), asm.StoreMem(asm.R2, 28, asm.R7, asm.Half),
		asm.HostTo(asm.BE, asm.R6, asm.Half), asm.StoreMem(asm.R2, 34, asm.R6, asm.Half),
		asm.Mov.Imm(asm.R1, int32(wire.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), asm.Return(), // XDP_DROP
	)
}

func (l *entryLab) counted() (c counted, err error) {
	return c, l.counts.Lookup(uint32(0), &c)
}

// send sends so many packets of a load, and waits until they have left. It returns the least time of a packet in a window, and how many packets were lost.
func (l *entryLab) send(load, packets int) (nanos float64, lost uint64, err error) {
	before, err := l.counted()
	if err != nil {
		return 0, 0, err
	}
	before.Last, before.Least = 0, math.MaxUint64
	if err := l.counts.Put(uint32(0), &before); err != nil {
		return 0, 0, err
	}
	if _, err := l.generators[load].Run(&ebpf.RunOptions{
		Data: make([]byte, frameSize), Repeat: uint32(packets), Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	}); err != nil {
		return 0, 0, fmt.Errorf("sending packets: %w", err)
	}
	for sent := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		now, err := l.counted()
		if err != nil {
			return 0, 0, err
		}
		n, left := now.Sent-before.Sent, now.Left-before.Left
		if left >= n {
			return float64(now.Least) / frameWindow, 0, nil
		}
		if time.Since(sent) > frameWait {
			l.lost += n - left
			return 0, n - left, nil
		}
	}
}

// begin has the node track the flows of a load, unless each packet belongs to a new one. A busy machine loses packets, so it sends few at once, and all of
// them again if some were lost.
func (l *entryLab) begin(load int) error {
	const tries = 20
	flows := edgeLoads[load].flows
	if flows == 0 {
		return nil
	}
	for range tries {
		var lost uint64
		for sent := 0; sent < flows; sent += frameWindow {
			_, n, err := l.send(load, min(frameWindow, flows-sent))
			if err != nil {
				return err
			}
			lost += n
		}
		if lost == 0 {
			return nil
		}
	}
	return nil // the run after it counts only if it loses nothing
}

// measure measures a load, and returns how many connections the node tracks then. Runs with lost packets do not count.
func (l *entryLab) measure(load, packets int) (tracked int, err error) {
	err = l.ns.Do(func() error {
		return onOneCPU(func() error {
			// Connections of another load are not measured.
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				return fmt.Errorf("forgetting connections: %w", err)
			}
			if err := l.begin(load); err != nil {
				return err
			}
			nanos, lost, err := l.send(load, packets)
			if err != nil {
				return err
			}
			name := edgeLoads[load].name
			if was, measured := l.least[name]; lost == 0 && (!measured || nanos < was) {
				l.least[name] = nanos
			}
			tracked, err = l.node.tracked()
			return err
		})
	})
	return tracked, err
}

// check returns an error if a load was not measured, or if packets went another way than the one that was to be measured.
func (l *entryLab) check() error {
	for _, load := range edgeLoads {
		if _, ok := l.least[load.name]; !ok {
			return fmt.Errorf("entry node, %s, %s: packets were lost in each run, %d in all: stop other work on the machine", l.variant, load.name, l.lost)
		}
	}
	if l.node == nil || l.node.edge == nil {
		return nil
	}
	now, err := l.counted()
	if err != nil {
		return err
	}
	stats, err := l.node.edge.Stats()
	if err == nil && stats[programs.HandedOver] < now.Sent-l.lost {
		err = fmt.Errorf("entry node, %s: %d packets of %d were handed over: %v", l.variant, stats[programs.HandedOver], now.Sent, stats)
	}
	return err
}

// onOneCPU runs fn on a thread that stays on one CPU. Processes that fn starts stay there as well.
func onOneCPU(fn func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("CPUs of a thread: %w", err)
	}
	for cpu, left := 0, all.Count(); left > 0; cpu++ {
		if all.IsSet(cpu) { // the last one counts: the first one mostly has the interrupts of devices
			one.Zero()
			one.Set(cpu)
			left--
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("keeping a thread on one CPU: %w", err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &all)) }()
	return fn()
}
