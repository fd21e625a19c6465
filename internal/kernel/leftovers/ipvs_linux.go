package leftovers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// proxyDevice holds the addresses of services in IPVS mode.
const proxyDevice = "kube-ipvs0"

// ourDevice holds the addresses of Services in the mode ipvs of ours. Virtual servers there are not left over, also where they were
// kube-proxy's before.
const ourDevice = "switchyard-ipvs"

// The IPVS family of generic netlink (include/uapi/linux/ip_vs.h).
const (
	ipvsVersion    = 1
	ipvsDelService = 3
	ipvsGetService = 4
	ipvsFlush      = 17
)

// ipvs is the kernel as far as IPVS mode needs it. Tests replace it, because few kernels have IPVS.
type ipvs struct {
	link    func(name string) (netlink.Link, error)
	delLink func(netlink.Link) error
	addrs   func(netlink.Link, int) ([]netlink.Addr, error)
	family  func(name string) (*netlink.GenlFamily, error)
	execute func(*nl.NetlinkRequest) ([][]byte, error)
}

func realIPVS() *ipvs {
	return &ipvs{
		link: netlink.LinkByName, delLink: netlink.LinkDel, addrs: netlink.AddrList, family: netlink.GenlFamilyGet,
		execute: func(r *nl.NetlinkRequest) ([][]byte, error) { return r.Execute(unix.NETLINK_GENERIC, 0) },
	}
}

// sweep looks for IPVS only if there is kube-proxy's device: others use IPVS too, and to ask for it loads its kernel module. The
// device goes last, so that a sweep that was broken off is taken up again.
func (k *ipvs) sweep(_ context.Context, do action) ([]Item, error) {
	link, err := k.link(proxyDevice)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", proxyDevice, err)
	}
	if link.Type() != "dummy" {
		return nil, nil // somebody else's, by the same name
	}
	items, err := k.servers(do)
	if err != nil {
		return items, fmt.Errorf("IPVS virtual servers: %w", err)
	}
	if do == find {
		return append(items, Item{Devices, "the kernel", []string{proxyDevice}}), nil
	}
	if err := k.delLink(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return items, fmt.Errorf("deleting device %s: %w", proxyDevice, err)
	}
	return append(items, Item{Devices, "the kernel", []string{proxyDevice}}), nil
}

func (k *ipvs) servers(do action) ([]Item, error) {
	family, err := k.family("IPVS")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ours, err := k.ours()
	if err != nil {
		return nil, err
	}
	request := func(cmd uint8, flags int, attrs []byte) ([][]byte, error) {
		req := nl.NewNetlinkRequest(int(family.ID), flags)
		req.AddData(&nl.Genlmsg{Command: cmd, Version: ipvsVersion})
		req.AddRawData(attrs)
		return k.execute(req)
	}
	msgs, err := request(ipvsGetService, unix.NLM_F_DUMP, nil)
	if err != nil {
		return nil, fmt.Errorf("listing them: %w", err)
	}
	var names []string
	var left [][]byte
	for _, msg := range msgs {
		name, addr, err := serverName(msg)
		if err != nil {
			return nil, err
		}
		if !ours[addr] {
			names, left = append(names, name), append(left, msg)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	if do == find {
		slices.Sort(names)
		return []Item{{VirtualServers, "IPVS", names}}, nil
	}
	if len(left) == len(msgs) {
		if _, err := request(ipvsFlush, unix.NLM_F_ACK, nil); err != nil {
			return nil, fmt.Errorf("deleting %d: %w", len(names), err)
		}
	} else {
		for i, msg := range left {
			// The attributes that describe a server in a listing also name it.
			if _, err := request(ipvsDelService, unix.NLM_F_ACK, msg[nl.SizeofGenlmsg:]); err != nil && !errors.Is(err, unix.ESRCH) {
				return nil, fmt.Errorf("deleting %s: %w", names[i], err)
			}
		}
	}
	slices.Sort(names)
	return []Item{{VirtualServers, "IPVS", names}}, nil
}

// ours returns the addresses that the mode ipvs of ours serves.
func (k *ipvs) ours() (map[netip.Addr]bool, error) {
	link, err := k.link(ourDevice)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", ourDevice, err)
	}
	list, err := k.addrs(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", ourDevice, err)
	}
	ours := map[netip.Addr]bool{}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			ours[addr.Unmap()] = true
		}
	}
	return ours, nil
}

// serverName reads a service from one message of a dump. It has no address if it is one for a mark.
func serverName(msg []byte) (string, netip.Addr, error) {
	if len(msg) < nl.SizeofGenlmsg {
		return "", netip.Addr{}, errors.New("truncated message")
	}
	const (
		attrService = 1
		attrAF      = 1
		attrProto   = 2
		attrAddress = 3
		attrPort    = 4
		attrMark    = 5
	)
	var af, proto, port uint16
	var address [16]byte
	outer, err := nl.ParseRouteAttr(msg[nl.SizeofGenlmsg:])
	if err != nil {
		return "", netip.Addr{}, err
	}
	for _, o := range outer {
		if o.Attr.Type&nl.NLA_TYPE_MASK != attrService {
			continue
		}
		inner, err := nl.ParseRouteAttr(o.Value)
		if err != nil {
			return "", netip.Addr{}, err
		}
		for _, a := range inner {
			typ := a.Attr.Type & nl.NLA_TYPE_MASK
			switch {
			case typ == attrAF && len(a.Value) >= 2:
				af = native.Uint16(a.Value)
			case typ == attrProto && len(a.Value) >= 2:
				proto = native.Uint16(a.Value)
			case typ == attrAddress:
				copy(address[:], a.Value)
			case typ == attrPort && len(a.Value) >= 2:
				port = uint16(a.Value[0])<<8 | uint16(a.Value[1])
			case typ == attrMark && len(a.Value) >= 4:
				return fmt.Sprintf("mark %d", native.Uint32(a.Value)), netip.Addr{}, nil
			}
		}
	}
	ip := netip.AddrFrom16(address)
	if af == unix.AF_INET {
		ip = netip.AddrFrom4([4]byte(address[:4]))
	}
	protocols := map[uint16]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}
	name, ok := protocols[proto]
	if !ok {
		name = fmt.Sprint(proto)
	}
	return strings.Join([]string{name, netip.AddrPortFrom(ip, port).String()}, " "), ip, nil
}
