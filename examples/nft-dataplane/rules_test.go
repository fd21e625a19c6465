//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestSetsDoNotGrow makes sure that services have no sets of their own: the kernel walks all of a table for each one that it looks up.
func TestSetsDoNotGrow(t *testing.T) {
	sets := func(services int) int {
		d := crowd(services)
		script := d.script(d.inOrder(nil), false).String()
		return strings.Count(script, "vmap {") + strings.Count(script, "add set")
	}
	if few, many := sets(10), sets(100); few != many {
		t.Errorf("10 services have %d sets, and 100 have %d: want the same number", few, many)
	}
}

// TestLoopbackRanges are those that are served, and so guarded. Others do not mean loopback addresses, even if they have them.
func TestLoopbackRanges(t *testing.T) {
	for _, c := range []struct {
		cidr            string
		serves, without bool
	}{
		{"127.0.0.0/8", true, false},
		{"127.0.0.1/32", true, false},
		{"0.0.0.0/0", false, true},
		{"126.0.0.0/7", false, true},
		{"192.0.2.0/24", false, true},
		{"::1/128", false, false},
	} {
		p := netip.MustParsePrefix(c.cidr)
		d := &dataplane{node: &api.Node{NodePortAddresses: &api.NodePortAddresses{
			Cidrs: []*api.Prefix{{Address: p.Addr().AsSlice(), Length: uint32(p.Bits())}},
		}}}
		w := &writer{dataplane: d}
		rules := strings.Join(append(w.nodePortMatches("ip"), w.nodePortMatches("ip6")...), "\n")
		if got := d.servesLoopback(); got != c.serves {
			t.Errorf("%s: serves on loopback addresses: %v, want %v", c.cidr, got, c.serves)
		}
		if got := strings.Contains(rules, "daddr != 127.0.0.0/8"); got != c.without {
			t.Errorf("%s: leaves loopback addresses out: %v, want %v in\n%s", c.cidr, got, c.without, rules)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, services := range []int{500, 1000, 2000, 4000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			d := crowd(services)
			err := netnstest.New(b).Do(func() error {
				for b.Loop() {
					if err := d.write(d.inOrder(nil)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// crowd has services of five endpoints.
func crowd(services int) *dataplane {
	d := &dataplane{node: &api.Node{}, services: make(map[client.ServiceName]*api.ServiceEndpoints)}
	for i := range services {
		p := &api.Port{
			Protocol: api.Protocol_PROTOCOL_TCP, Family: api.Family_FAMILY_IPV4,
			Frontends: []*api.Frontend{{
				Kind: api.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 96, byte(i >> 8), byte(i)}, Port: 80,
			}},
		}
		route := &api.Route{Verdict: api.Verdict_VERDICT_FORWARD}
		for j := range 5 {
			p.Endpoints = append(p.Endpoints, &api.Endpoint{Address: []byte{10, 244, byte(i), byte(j)}, Port: 8080})
			route.Endpoints = append(route.Endpoints, uint32(j))
		}
		p.Internal = &api.Traffic{Inside: route, Outside: route, Masquerade: api.Masquerade_MASQUERADE_UNLESS_POD}
		s := &api.ServiceEndpoints{Namespace: "default", Name: fmt.Sprint("s", i), Ports: []*api.Port{p}}
		d.services[client.NameOf(s)] = s
	}
	return d
}
