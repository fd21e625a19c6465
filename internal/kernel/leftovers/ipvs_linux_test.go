package leftovers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// fakeKernel answers like one with IPVS, and writes down what it is asked for.
type fakeKernel struct {
	device  netlink.Link
	id      uint16 // of IPVS; 0 if it has none
	servers [][]byte
	ours    []string // addresses on the device of ours, if there is one
	errs    map[string]error
	calls   []string
}

func (f *fakeKernel) ipvs() *ipvs {
	return &ipvs{
		link: func(name string) (netlink.Link, error) {
			if name == ourDevice && len(f.ours) > 0 {
				return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: ourDevice}}, nil
			}
			if f.device == nil || name != proxyDevice {
				return nil, netlink.LinkNotFoundError{}
			}
			return f.device, f.errs["link"]
		},
		delLink: func(netlink.Link) error {
			f.calls = append(f.calls, "delete device")
			if f.errs["device"] == nil {
				f.device = nil
			}
			return f.errs["device"]
		},
		addrs: func(netlink.Link, int) (list []netlink.Addr, err error) {
			for _, a := range f.ours {
				list = append(list, netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a)}})
			}
			return list, f.errs["addresses"]
		},
		family: func(name string) (*netlink.GenlFamily, error) {
			f.calls = append(f.calls, "family "+name)
			if f.id == 0 {
				return nil, unix.ENOENT
			}
			return &netlink.GenlFamily{ID: f.id, Name: name}, nil
		},
		execute: f.execute,
	}
}

// execute takes the request as it would go to the kernel.
func (f *fakeKernel) execute(r *nl.NetlinkRequest) ([][]byte, error) {
	b := r.Serialize()
	typ, flags, cmd, version := native.Uint16(b[4:]), native.Uint16(b[6:]), b[16], b[17]
	if typ != f.id || version != 1 || len(b) != 20 && cmd != ipvsDelService {
		return nil, unix.EINVAL
	}
	switch {
	case cmd == 3 && flags&unix.NLM_F_ACK != 0: // IPVS_CMD_DEL_SERVICE
		name, _, err := serverName(b[16:])
		f.calls = append(f.calls, "delete "+name)
		return nil, errors.Join(err, f.errs["delete"])
	case cmd == 4 && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP: // IPVS_CMD_GET_SERVICE
		f.calls = append(f.calls, "list")
		return f.servers, f.errs["list"]
	case cmd == 17 && flags&unix.NLM_F_ACK != 0: // IPVS_CMD_FLUSH
		f.calls = append(f.calls, "flush")
		if f.errs["flush"] == nil {
			f.servers = nil
		}
		return nil, f.errs["flush"]
	}
	return nil, unix.EOPNOTSUPP
}

// server is a message of the dump.
func server(proto uint16, address string) []byte {
	a := netip.MustParseAddrPort(address)
	af, ip := uint16(unix.AF_INET), make([]byte, 16)
	if a.Addr().Is6() {
		af = unix.AF_INET6
	}
	copy(ip, a.Addr().AsSlice())
	svc := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil)
	svc.AddRtAttr(1, nl.Uint16Attr(af))
	svc.AddRtAttr(2, nl.Uint16Attr(proto))
	svc.AddRtAttr(3, ip)
	svc.AddRtAttr(4, []byte{byte(a.Port() >> 8), byte(a.Port())})
	return append([]byte{1, 1, 0, 0}, svc.Serialize()...)
}

func markServer(mark uint32) []byte {
	svc := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil)
	svc.AddRtAttr(1, nl.Uint16Attr(unix.AF_INET))
	svc.AddRtAttr(5, nl.Uint32Attr(mark))
	return append([]byte{1, 1, 0, 0}, svc.Serialize()...)
}

func dummy() netlink.Link { return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: proxyDevice}} }

func TestIPVS(t *testing.T) {
	servers := func() [][]byte {
		return [][]byte{server(6, "10.96.0.1:443"), server(17, "[fd00::a]:53"), server(132, "10.96.0.2:1"), markServer(7)}
	}
	const all = "4 virtual servers in IPVS: SCTP 10.96.0.2:1, TCP 10.96.0.1:443, UDP [fd00::a]:53, mark 7; "
	const device = "1 device in the kernel: kube-ipvs0; "
	tests := []struct {
		name   string
		kernel fakeKernel
		remove string // items
		calls  string // of remove
		err    error
	}{
		{name: "no device: IPVS is somebody else's, and not even asked for", kernel: fakeKernel{id: 30, servers: servers()}},
		{
			name:   "a device of another type",
			kernel: fakeKernel{id: 30, device: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: proxyDevice}}, servers: servers()},
		},
		{
			name: "a kernel without IPVS", kernel: fakeKernel{device: dummy()},
			remove: device, calls: "family IPVS, delete device",
		},
		{
			name: "no servers", kernel: fakeKernel{id: 30, device: dummy()},
			remove: device, calls: "family IPVS, list, delete device",
		},
		{
			name: "servers and device", kernel: fakeKernel{id: 30, device: dummy(), servers: servers()},
			remove: all + device, calls: "family IPVS, list, flush, delete device",
		},
		{
			name:   "servers of ours stay",
			kernel: fakeKernel{id: 30, device: dummy(), servers: servers(), ours: []string{"10.96.0.1", "fd00::a"}},
			remove: "2 virtual servers in IPVS: SCTP 10.96.0.2:1, mark 7; " + device,
			calls:  "family IPVS, list, delete SCTP 10.96.0.2:1, delete mark 7, delete device",
		},
		{
			name: "only servers of ours", kernel: fakeKernel{id: 30, device: dummy(), servers: servers()[:1], ours: []string{"10.96.0.1"}},
			remove: device, calls: "family IPVS, list, delete device",
		},
		{
			name:   "the addresses of ours cannot be listed: nothing goes",
			kernel: fakeKernel{id: 30, device: dummy(), servers: servers(), ours: []string{"10.96.0.1"}, errs: map[string]error{"addresses": unix.EPERM}},
			calls:  "family IPVS", err: unix.EPERM,
		},
		{
			name:  "flush refused: the device stays, so that the next time finds the servers",
			calls: "family IPVS, list, flush", err: unix.EPERM,
			kernel: fakeKernel{id: 30, device: dummy(), servers: servers(), errs: map[string]error{"flush": unix.EPERM}},
		},
		{
			name:   "device refused",
			remove: all, calls: "family IPVS, list, flush, delete device", err: unix.EPERM,
			kernel: fakeKernel{id: 30, device: dummy(), servers: servers(), errs: map[string]error{"device": unix.EPERM}},
		},
		{
			name:   "device gone meanwhile",
			remove: device, calls: "family IPVS, delete device",
			kernel: fakeKernel{device: dummy(), errs: map[string]error{"device": unix.ENODEV}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := tt.kernel.ipvs()
			if found, err := k.sweep(t.Context(), find); err == nil && tt.err == nil && text(found) != tt.remove {
				t.Errorf("found %s, want %s", text(found), tt.remove)
			}
			if calls := strings.Join(tt.kernel.calls, ", "); strings.Contains(calls, "delete") || strings.Contains(calls, "flush") {
				t.Errorf("to look changes the kernel: %s", calls)
			}
			tt.kernel.calls = nil
			items, err := k.sweep(t.Context(), remove)
			if text(items) != tt.remove || !errors.Is(err, tt.err) {
				t.Errorf("removed %s(%v), want %s(%v)", text(items), err, tt.remove, tt.err)
			}
			if calls := strings.Join(tt.kernel.calls, ", "); calls != tt.calls {
				t.Errorf("calls: %s, want %s", calls, tt.calls)
			}
			if tt.err != nil || tt.remove == "" {
				return
			}
			tt.kernel.errs = nil
			tt.kernel.device = nil
			if again, err := k.sweep(t.Context(), remove); again != nil || err != nil {
				t.Errorf("the second time: removed %v (%v)", again, err)
			}
		})
	}
}

func text(items []Item) (s string) {
	for _, i := range items {
		s += i.String() + "; "
	}
	return s
}

func TestTruncatedServer(t *testing.T) {
	whole := server(6, "10.96.0.1:443")
	for cut := range len(whole) {
		_, _, _ = serverName(whole[:cut]) // must not panic
	}
	if name, _, err := serverName(whole); name != "TCP 10.96.0.1:443" || err != nil {
		t.Errorf("%s, %v", name, err)
	}
	if _, _, err := serverName(whole[:3]); err == nil {
		t.Error("a message without a header is no error")
	}
}

// TestFailuresDoNotStopTheRest has one part fail: the others are carried out, and the report has the removed objects
// and the error.
func TestFailuresDoNotStopTheRest(t *testing.T) {
	errs := []error{errors.New("first"), errors.New("third")}
	part := func(name string, err error) sweep {
		return func(context.Context, action) ([]Item, error) {
			return []Item{{Tables, "nftables", []string{name}}}, err
		}
	}
	items, err := run(t.Context(), []sweep{part("a", errs[0]), part("b", nil), part("c", errs[1])}, remove)
	if want := "1 table in nftables: a; 1 table in nftables: b; 1 table in nftables: c; "; text(items) != want {
		t.Errorf("items %s, want %s", text(items), want)
	}
	if !errors.Is(err, errs[0]) || !errors.Is(err, errs[1]) {
		t.Errorf("error %v, want both", err)
	}
}
