package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// To is the destination, as a person names it.
type To struct {
	service state.ServiceName // empty for addresses; without a namespace, it is in the client's
	// either is set for a pair of names that may be NAMESPACE/NAME, as service has it, or NAME/NAMESPACE.
	either   bool
	port     string // of a Service: name, number or empty for all
	addr     netip.AddrPort
	protocol state.Protocol // 0 if it is not given
}

// Addr is the address and port, not valid if a Service is named.
func (t To) Addr() netip.AddrPort { return t.addr }

// Namespaces are the namespaces in which a client means the Service to be, none if an address is named.
func (t To) Namespaces(from From) []string {
	var namespaces []string
	for _, name := range t.services(from.Namespace) {
		namespaces = append(namespaces, name.Namespace)
	}
	return namespaces
}

// services are the names that the Service may have, the likeliest first. namespace is the client's, empty if it has none.
func (t To) services(namespace string) []state.ServiceName {
	if t.service.Name == "" {
		return nil
	}
	name := t.service
	name.Namespace = cmp.Or(name.Namespace, namespace, "default")
	names := []state.ServiceName{name}
	if t.either {
		names = append(names, state.ServiceName{Namespace: t.service.Name, Name: t.service.Namespace})
	}
	return names
}

// In returns the text of a destination for a client of a namespace, for a reader who does not know that namespace. It is text if that says
// the same to both.
func In(namespace, text string) string {
	t, err := ParseTo(text)
	if err != nil || t.service.Name == "" || t.service.Namespace != "" {
		return text
	}
	text = "svc/" + namespace + "/" + t.service.Name
	if t.port != "" {
		text += ":" + t.port
		if t.protocol != 0 {
			text += "/" + strings.ToLower(t.protocol.String())
		}
	}
	return text
}

// The forms of destinations, for errors.
const toForms = "svc/NAMESPACE/NAME[:PORT], a DNS name such as cart.shop:http or cart.shop.svc.cluster.local, a URL such as http://cart.shop/, " +
	"or IP:PORT[/PROTOCOL] with the port, such as 10.96.0.10:53/udp or [fd00::1]:80"

// ParseTo reads svc/NAMESPACE/NAME[:PORT[/PROTOCOL]], where PORT is a name or a number. It also reads NAMESPACE/NAME
// and the DNS name of a Service, with or without such a port, a URL, and IP:PORT[/PROTOCOL].
func ParseTo(text string) (To, error) {
	t, err := parseTo(text)
	if err != nil {
		return To{}, fmt.Errorf("TO: %w", err)
	}
	return t, nil
}

func parseTo(text string) (t To, err error) {
	if strings.Contains(text, "://") {
		return parseURL(text)
	}
	for _, prefix := range []string{"svc/", "service/", "services/"} {
		rest, ok := strings.CutPrefix(text, prefix)
		if !ok {
			continue
		}
		name, port, hasPort := strings.Cut(rest, ":")
		if t.service.Namespace, t.service.Name, err = objectName(name); err != nil || !hasPort {
			return t, err
		}
		return t.withPort(text, port)
	}
	if addr, protocol, given := strings.Cut(text, "/"); isAddr(addr) {
		if t.addr, err = netip.ParseAddrPort(addr); err != nil || t.addr.Port() == 0 || t.addr.Addr().Zone() != "" {
			return t, notADestination(text)
		}
		t.addr = netip.AddrPortFrom(t.addr.Addr().Unmap(), t.addr.Port())
		t.protocol = state.TCP
		if given {
			t.protocol, err = parseProtocol(protocol)
		}
		return t, err
	}
	name, port, hasPort := strings.Cut(text, ":")
	namespace, own, isPair := strings.Cut(name, "/")
	switch {
	case !isPair:
		if t.service, err = serviceOf(name); err != nil {
			return t, err
		}
	case isLabel(namespace) && isLabel(own):
		t.service, t.either = state.ServiceName{Namespace: namespace, Name: own}, true
	default:
		return t, notADestination(text)
	}
	if hasPort {
		return t.withPort(text, port)
	}
	return t, nil
}

func notADestination(text string) error { return fmt.Errorf("%q is not %s", text, toForms) }

// isAddr reports whether a text begins as an IP address does, with a port or without one.
func isAddr(text string) bool {
	if strings.HasPrefix(text, "[") || strings.Count(text, ":") > 1 {
		return true
	}
	host, _, _ := strings.Cut(text, ":")
	labels := strings.Split(host, ".")
	return isNumber(labels[len(labels)-1]) // no name in DNS ends in a number
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// withPort adds the port of a text that has a colon, PORT or PORT/PROTOCOL.
func (t To) withPort(text, port string) (To, error) {
	port, protocol, given := strings.Cut(port, "/")
	if t.port = port; port == "" || port == "0" {
		return t, fmt.Errorf("%q has a colon, and no port behind it", text)
	}
	var err error
	if given {
		t.protocol, err = parseProtocol(protocol)
	}
	return t, err
}

// schemePorts are the ports of URLs that name none.
var schemePorts = map[string]string{"http": "80", "ws": "80", "https": "443", "wss": "443"}

// parseURL reads the host and port of a URL. Its scheme may be a protocol.
func parseURL(text string) (t To, err error) {
	u, err := url.Parse(text)
	if err != nil {
		if wrong, ok := errors.AsType[*url.Error](err); ok {
			err = wrong.Err
		}
		return t, fmt.Errorf("%q is not a URL: %w", text, err)
	}
	t.protocol = state.TCP
	if p, err := parseProtocol(u.Scheme); err == nil {
		t.protocol = p
	}
	host, port := u.Hostname(), cmp.Or(u.Port(), schemePorts[u.Scheme])
	if !isAddr(host) {
		if t.service, err = serviceOf(host); err != nil {
			return t, err
		}
		if t.port = port; port == "" {
			t.protocol = 0
		}
		return t, nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" {
		return t, fmt.Errorf("%q: host %q is neither a name nor an IP address", text, host)
	}
	number, err := netip.ParseAddrPort("0.0.0.0:" + port)
	if err != nil || number.Port() == 0 {
		return t, fmt.Errorf("%q has no port: add it behind the address", text)
	}
	t.addr = netip.AddrPortFrom(addr.Unmap(), number.Port())
	return t, nil
}

// serviceOf returns the Service with a name in the cluster's DNS: NAME, NAME.NAMESPACE or NAME.NAMESPACE.svc.CLUSTER-DOMAIN, or one before
// which the name of a pod stands. NAME is without a namespace.
func serviceOf(host string) (state.ServiceName, error) {
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(host), "."), ".")
	if slices.ContainsFunc(labels, func(l string) bool { return !isLabel(l) }) {
		return state.ServiceName{}, notADestination(host)
	}
	switch {
	case len(labels) == 1:
		return state.ServiceName{Name: labels[0]}, nil
	case len(labels) == 2 || labels[2] == "svc":
		return state.ServiceName{Name: labels[0], Namespace: labels[1]}, nil
	case len(labels) > 3 && labels[3] == "svc":
		return state.ServiceName{Name: labels[1], Namespace: labels[2]}, nil
	}
	return state.ServiceName{}, fmt.Errorf("%q is not the name of a Service in the cluster's DNS (NAME.NAMESPACE.svc.CLUSTER-DOMAIN): "+
		"resolve it, and give the address, as IP:PORT", host)
}

// isLabel reports whether a text may be a label of a DNS name, such as the name of a Service or Namespace.
func isLabel(text string) bool {
	if text == "" || len(text) > 63 || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
