package brain_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

func config() *brain.Config {
	return &brain.Config{NodeName: "node1", LocalDetector: state.LocalDetector{NodeCIDR: true}}
}

func thisNode() *model.Node {
	return &model.Node{Name: "node1", Zone: "a", Addresses: addrs("172.16.0.1 fd16::1")}
}

// service is a service of type ClusterIP with one port in IPv4; tests change the fields that they need.
func service() *model.Service {
	return &model.Service{
		Name:       state.ServiceName{Namespace: "ns", Name: "svc"},
		ClusterIPs: addrs("10.96.0.1"),
		Ports:      []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
	}
}

// slice is an EndpointSlice of service(), each endpoint given in the notation of endpoint.
func slice(family state.Family, endpoints ...string) *model.EndpointSlice {
	s := &model.EndpointSlice{
		Namespace: "ns", Name: "slice", Service: "svc", Family: family,
		Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, endpoint(e))
	}
	return s
}

// endpoint reads "address [word ...]". Without words it is ready, serving and on another node. The words: here (on this
// node), notready, dying (terminating, but still serving), dead (terminating, not serving), published (terminating, but
// ready by publishNotReadyAddresses), on=n (its node), apart (which does not take part in the edge), zone=z (where it is), zones=z,... and nodes=n,... (hints).
func endpoint(text string) model.Endpoint {
	words := strings.Fields(text)
	e := model.Endpoint{Addr: netip.MustParseAddr(words[0]), Ready: true, Serving: true, NodeName: "other"}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "here":
			e.NodeName = "node1"
		case "notready":
			e.Ready, e.Serving = false, false
		case "dying":
			e.Ready, e.Terminating = false, true
		case "dead":
			e.Ready, e.Serving, e.Terminating = false, false, true
		case "published":
			e.Terminating = true
		case "on":
			e.NodeName = value
		case "apart":
			e.NodeApart = true
		case "zones":
			e.ZoneHints = strings.Split(value, ",")
		case "zone":
			e.Zone = value
		case "nodes":
			e.NodeHints = strings.Split(value, ",")
		default:
			panic("unknown word " + w)
		}
	}
	return e
}

var addrs, prefixes = recordtest.Addrs, recordtest.Prefixes

// compute is Compute with the invariants of the record checked.
func compute(t testing.TB, cfg *brain.Config, node *model.Node, svc *model.Service, slices ...*model.EndpointSlice) *state.Service {
	t.Helper()
	rec := brain.Compute(cfg, node, svc, slices)
	if err := check(rec); err != nil {
		t.Fatalf("invalid record: %v\n%+v", err, rec)
	}
	return rec
}

// showRoute writes a route as "Forward 10.1.0.1:8080* 10.1.0.2:8080", with * for local endpoints.
func showRoute(r state.Route) string {
	return strings.TrimSpace(r.Verdict.String() + " " + showEndpoints(r.Endpoints))
}

func showEndpoints(eps []state.Endpoint) string {
	var b strings.Builder
	for i, e := range eps {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Addr.String())
		if e.Local {
			b.WriteByte('*')
		}
	}
	return b.String()
}

// showFrontends writes the frontends of all ports, one per line: "http/TCP/IPv4 ClusterIP 10.96.0.1:80".
func showFrontends(rec *state.Service) string {
	var b strings.Builder
	for _, p := range rec.Ports {
		for _, f := range p.Frontends {
			fmt.Fprintf(&b, "%s/%v/%v %v ", p.Name, p.Protocol, p.Family, f.Kind)
			if f.Kind == state.NodePort {
				fmt.Fprint(&b, f.Port)
			} else {
				b.WriteString(netip.AddrPortFrom(f.Addr, f.Port).String())
			}
			if f.Restricted {
				fmt.Fprintf(&b, " from %v", f.Sources)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// lines trims each line of text, so that expectations may be indented.
func lines(text string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			b.WriteString(l + "\n")
		}
	}
	return b.String()
}
