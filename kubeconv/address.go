package kubeconv

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// addr parses an address, leniently as the package documents.
func (f *faults) addr(path, s string) netip.Addr {
	a, ok := parseAddr(s)
	if !ok {
		f.add(path, s, problemAddr)
	}
	return a
}

// specialProblem returns why an address cannot be the address of an endpoint or an externalIP, empty if it can. It
// follows the API server (pkg/apis/core/validation, ValidateNonSpecialIP). The API server admits the broadcast address
// and most multicast addresses, and package brain handles these.
func specialProblem(a netip.Addr) string {
	kind := model.Special(a)
	if a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() {
		return "must not be " + kind
	}
	return ""
}

// addrs parses a list of addresses and leaves out those with a fault.
func (f *faults) addrs(path string, list []string) []netip.Addr {
	var addrs []netip.Addr
	for i, s := range list {
		if a, ok := parseAddr(s); ok {
			addrs = append(addrs, a)
		} else {
			f.add(index(path, i), s, problemAddr)
		}
	}
	return addrs
}

func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	}
	// An address with a zone means something on one node only. Kubernetes has never accepted them.
	if !a.IsValid() || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

const problemAddr, problemCIDR = "must be an IP address", "must be a CIDR such as 10.0.0.0/8 or fd00::/8"

// prefixes parses a list of CIDRs and leaves out those with a fault. Space around them is ignored, as the API server does
// for loadBalancerSourceRanges.
func (f *faults) prefixes(path string, list []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, s := range list {
		if p, ok := parsePrefix(strings.TrimSpace(s)); ok {
			prefixes = append(prefixes, p)
		} else {
			f.add(index(path, i), s, problemCIDR)
		}
	}
	return prefixes
}

// parsePrefix returns the CIDR s with all bits after the prefix cleared.
func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		_, ipNet, err := netutils.ParseCIDRSloppy(s)
		if err != nil {
			return netip.Prefix{}, false
		}
		a, _ := netip.AddrFromSlice(ipNet.IP)
		bits, _ := ipNet.Mask.Size()
		p = netip.PrefixFrom(a, bits)
	}
	if p.Addr().Is4In6() {
		// A prefix of less than 96 bits holds more than IPv4 addresses; there is no IPv4 CIDR for it.
		if p.Bits() < 96 {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), p.IsValid()
}

// port checks a port number. It must be at least least, which is 0 for ports that may be absent.
func (f *faults) port(path string, number, least int32) uint16 {
	if number < least || number > 65535 {
		problem := "must be a number from 1 to 65535"
		if least == 0 {
			problem += " or absent"
		}
		f.add(path, number, problem)
		return 0
	}
	return uint16(number)
}

// protocol parses a protocol, TCP by default.
func (f *faults) protocol(path string, p corev1.Protocol) state.Protocol {
	switch p {
	case "", corev1.ProtocolTCP:
		return state.TCP
	case corev1.ProtocolUDP:
		return state.UDP
	case corev1.ProtocolSCTP:
		return state.SCTP
	}
	f.add(path, string(p), "must be TCP, UDP or SCTP")
	return 0
}
