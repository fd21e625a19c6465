//go:build linux

package topology

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// Recorder keeps the latest packets that passed a host, to explain failed connections afterwards. Of TCP, it keeps packets with SYN, FIN or
// RST only. It sees packets on every device, both incoming and outgoing.
type Recorder struct {
	host   *Host
	file   *os.File
	names  map[int]string // of devices; used by the reader only
	before counters
	done   chan struct{}

	mu   sync.Mutex       // guards all below
	seen []recordedPacket // a ring, once it is full
	next int
}

// recorded is how many packets a Recorder keeps: some 10 s under the load of a story, longer than a connection takes
// to time out. maxExplained bounds the output of Explain.
const (
	recorded     = 1 << 16
	snapLength   = 128
	maxExplained = 120
)

// recordedPacket is one packet on one device.
type recordedPacket struct {
	at       time.Time
	device   string
	outgoing bool
	proto    uint8
	flags    uint8 // of TCP
	src, dst netip.AddrPort
	// note describes a special packet: an ICMP message, with the src and dst of the packet that it is about.
	note string
}

// Record starts to record what passes the host.
func (h *Host) Record() (*Recorder, error) {
	filter, err := bpf.Assemble(connectionEvents)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of a recorder: %w", err)
	}
	program := make([]unix.SockFilter, len(filter))
	for i, ins := range filter {
		program[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	var fd int
	err = h.ns.Do(func() (err error) {
		// Protocol 0: nothing is delivered before the filter is in place.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("record packets of %s: %w", h.Name, err)
	}
	file := os.NewFile(uintptr(fd), "recorder")
	err = firstError(
		os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})),
		os.NewSyscallError("SO_RCVBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)})),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record packets of %s: %w", h.Name, err), file.Close())
	}
	r := &Recorder{host: h, file: file, names: map[int]string{}, done: make(chan struct{})}
	r.before = h.counters()
	go r.run()
	return r, nil
}

// connectionEvents passes the beginnings and ends of connections, cut to snapLength bytes behind a link header of Ethernet. IPv6
// packets with extension headers pass as they are.
var connectionEvents = func() []bpf.Instruction {
	const link, keep = 14, snapLength
	const events = 0x07 // FIN, SYN, RST
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipFalse: 5},
		bpf.LoadAbsolute{Off: link + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 8},
		bpf.LoadMemShift{Off: link},
		bpf.LoadIndirect{Off: link + 13, Size: 1},
		bpf.Jump{Skip: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: 5},
		bpf.LoadAbsolute{Off: link + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: link + 40 + 13, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: events, SkipTrue: 1},
		bpf.RetConstant{Val: keep},
		bpf.RetConstant{Val: 0},
	}
}()

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// Close ends the recording.
func (r *Recorder) Close() error {
	err := r.file.Close()
	<-r.done
	return err
}

// run reads packets until the file is closed.
func (r *Recorder) run() {
	defer close(r.done)
	raw, err := r.file.SyscallConn()
	if err != nil {
		return // closed already
	}
	buf := make([]byte, snapLength)
	_ = raw.Read(func(fd uintptr) bool { // it ends with an error once the file is closed
		for {
			n, from, err := unix.Recvfrom(int(fd), buf, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return false // nothing is left, or the device of a packet is gone
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok {
				r.add(buf[:n], link)
			}
		}
	})
}

func (r *Recorder) add(frame []byte, link *unix.SockaddrLinklayer) {
	p := recordedPacket{at: time.Now(), outgoing: link.Pkttype == unix.PACKET_OUTGOING, device: r.device(link.Ifindex)}
	if len(frame) < 14 || !p.parse(frame[14:]) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) < recorded {
		r.seen = append(r.seen, p)
	} else {
		r.seen[r.next%recorded] = p
	}
	r.next++
}

// device returns the name of a device of the host.
func (r *Recorder) device(index int) string {
	if name, ok := r.names[index]; ok {
		return name
	}
	name := fmt.Sprint("device ", index)
	if link, err := r.host.nl.LinkByIndex(index); err == nil {
		name = link.Attrs().Name
	}
	r.names[index] = name
	return name
}

// parse reads an IP packet, and reports whether it is of a transport protocol or an ICMP error about such a packet.
func (p *recordedPacket) parse(b []byte) bool {
	var src, dst netip.Addr
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.proto, b = b[9], b[min(int(b[0]&15)*4, len(b)):]
	case len(b) >= 40 && b[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		p.proto, b = b[6], b[40:]
	default:
		return false
	}
	switch {
	case (p.proto == unix.IPPROTO_ICMP || p.proto == unix.IPPROTO_ICMPV6) && len(b) >= 8:
		inner := recordedPacket{at: p.at, device: p.device, outgoing: p.outgoing}
		if !inner.parse(b[8:]) { // no error about a packet
			return false
		}
		inner.note = fmt.Sprintf(" in ICMP type %d code %d of %v to %v", b[0], b[1], src, dst)
		*p = inner
		return true
	case p.proto != unix.IPPROTO_TCP && p.proto != unix.IPPROTO_UDP && p.proto != unix.IPPROTO_SCTP || len(b) < 4:
		return false
	}
	p.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	p.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	if p.proto == unix.IPPROTO_TCP && len(b) >= 14 {
		p.flags = b[13]
	}
	return true
}

func (p *recordedPacket) String() string {
	way := "in "
	if p.outgoing {
		way = "out"
	}
	var flags strings.Builder
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if p.flags>>i&1 != 0 {
			flags.WriteString(" " + name)
		}
	}
	return fmt.Sprintf("%s %s %-8s %v %v > %v%s%s", p.at.Format("15:04:05.000000"), way, p.device, state.Protocol(p.proto), p.src, p.dst, flags.String(), p.note)
}

// Explain describes the host's packets of connections that got no answer, oldest first. It adds the translated packets if the translation
// kept the client's port. It also adds the error counters that have changed since the recording began.
func (r *Recorder) Explain() string {
	r.mu.Lock()
	packets := make([]recordedPacket, 0, min(r.next, recorded))
	for i := max(0, r.next-recorded); i < r.next; i++ {
		packets = append(packets, r.seen[i%recorded])
	}
	r.mu.Unlock()
	about := unanswered(packets)
	packets = slices.DeleteFunc(packets, func(p recordedPacket) bool { return !about[p.client()] && !about[p.server()] })
	var text strings.Builder
	fmt.Fprintf(&text, "on %s, beginnings and ends of connections that got no answer", r.host.Name)
	if n := r.missed(); n > 0 {
		fmt.Fprintf(&text, " (%d packets came too fast to be recorded)", n)
	}
	text.WriteString(":\n")
	if more := len(packets) - maxExplained; more > 0 {
		fmt.Fprintf(&text, "  (%d earlier ones)\n", more)
		packets = packets[more:]
	}
	for i := range packets {
		fmt.Fprintf(&text, "  %v\n", &packets[i])
	}
	text.WriteString("counters of trouble:" + r.host.counters().since(r.before) + "\n")
	return text.String()
}

// missed is how many packets came faster than they were read, since it was last asked.
func (r *Recorder) missed() (n uint32) {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = stats.Drops
		}
	})
	return n
}

// party is one end of a connection. The address is left out: it changes on the way.
type party struct {
	proto uint8
	ipv4  bool
	port  uint16
}

func (p *recordedPacket) client() party { return party{p.proto, p.src.Addr().Is4(), p.src.Port()} }
func (p *recordedPacket) server() party { return party{p.proto, p.dst.Addr().Is4(), p.dst.Port()} }

// unanswered returns the clients of those first packets that nothing answered.
func unanswered(packets []recordedPacket) map[party]bool {
	const syn, synAck = 0x02, 0x12
	clients := map[party]bool{}
	for i := range packets {
		if p := &packets[i]; p.note == "" && (p.proto != unix.IPPROTO_TCP || p.flags&synAck == syn) {
			clients[p.client()] = true
		}
	}
	for i := range packets {
		switch p := &packets[i]; {
		case p.note != "": // an error is an answer to the packet in it
			delete(clients, p.client())
		case p.proto != unix.IPPROTO_TCP:
			if clients[p.server()] { // an answer to what has come before, or that itself answered
				delete(clients, p.server())
				delete(clients, p.client())
			}
		case p.flags&synAck != syn:
			delete(clients, p.server())
		}
	}
	return clients
}
