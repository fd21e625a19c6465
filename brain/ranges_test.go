package brain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

func withRanges(svc *model.Service, value string) *model.Service {
	svc.Annotations = []model.Annotation{{Name: model.PortRangesAnnotation, Value: value}}
	return svc
}

// TestPortRanges: ranges are read in full or count as absent. The service has port "http" of TCP.
func TestPortRanges(t *testing.T) {
	many := func(n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf("r%d=%d-%d/UDP", i, 1000+10*i, 1005+10*i))
		}
		return strings.Join(items, ",")
	}
	for value, want := range map[string]string{
		"rtp=10000-19999/UDP":                "rtp UDP 10000-19999",
		" rtp=10000-19999/UDP , x=1-2/SCTP":  "rtp UDP 10000-19999, x SCTP 1-2",
		"all=*":                              "all TCP 1-65535, all UDP 1-65535, all SCTP 1-65535",
		"all=*/UDP,some=1-65535/TCP":         "all UDP 1-65535, some TCP 1-65535",
		"a=5-6":                              "a TCP 5-6, a UDP 5-6, a SCTP 5-6",
		"http=10-20/UDP":                     "http UDP 10-20",
		"http=10-20/TCP":                     "", // the name of a port
		"http=10-20":                         "",
		"a=1-10/TCP,b=10-20/TCP":             "", // in common
		"a=1-10/TCP,b=10-20/UDP":             "a TCP 1-10, b UDP 10-20",
		"a=1-10/TCP,a=20-30/TCP":             "",
		"a=1-10/TCP,a=20-30/UDP":             "a TCP 1-10, a UDP 20-30",
		"a=1-1/TCP":                          "",
		"a=2-1/TCP":                          "",
		"a=0-5/TCP":                          "",
		"a=1-65536/TCP":                      "",
		"a=01-5/TCP":                         "",
		"a=+1-5/TCP":                         "",
		"a=1-5/tcp":                          "",
		"a=1-5/":                             "",
		"a=1-5/TCP,":                         "",
		"=1-5/TCP":                           "",
		"A=1-5/TCP":                          "",
		"-a=1-5/TCP":                         "",
		"1-5/TCP":                            "",
		"a=5/TCP":                            "",
		strings.Repeat("a", 64) + "=1-5/TCP": "",
		many(65):                             "",
		strings.Repeat(",", 3000):            "",
		"…":                                  "",
		"a=1-5/TCP,b=10-20/UD…":              "", // cut
	} {
		svc := withRanges(service(), value)
		svc.Ports[0].Name = "http"
		var got []string
		for _, r := range brain.SettingsOf(config(), svc).Ranges {
			got = append(got, fmt.Sprintf("%s %v %d-%d", r.Name, r.Protocol, r.First, r.Last))
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%q: %q, want %q", value, s, want)
		}
		if bad := brain.BadAnnotations(config(), svc); len(bad) > 0 != (want == "") {
			t.Errorf("%q: bad are %v", value, bad)
		}
	}
	if n := len(brain.SettingsOf(config(), withRanges(service(), many(64))).Ranges); n != 64 {
		t.Errorf("%d ranges, want 64", n)
	}
}

// FuzzPortRanges: a value is as good as what it says. Ranges that were read have no port and no name in common, and are read alike when they are written
// again.
func FuzzPortRanges(f *testing.F) {
	for _, value := range []string{"rtp=10000-19999/UDP, all=*/TCP", "a=1-2", "a=1-2,a=3-4", "…", ",", "a=-", "a=*/SCTP,b=*/UDP"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		svc := withRanges(service(), value)
		ranges := brain.SettingsOf(config(), svc).Ranges
		if bad := brain.BadAnnotations(config(), svc); len(bad) > 0 == (len(ranges) > 0) {
			t.Fatalf("%d ranges, and bad are %v", len(ranges), bad)
		}
		if len(ranges) > brain.MaxRanges {
			t.Fatalf("%d ranges", len(ranges))
		}
		var again []string
		for i, r := range ranges {
			if r.First == 0 || r.First >= r.Last || r.Name == "" {
				t.Fatalf("range %+v", r)
			}
			for _, o := range ranges[:i] {
				if r.Protocol == o.Protocol && (r.Name == o.Name || max(r.First, o.First) <= min(r.Last, o.Last)) {
					t.Fatalf("%+v and %+v", r, o)
				}
			}
			again = append(again, fmt.Sprintf("%s=%d-%d/%v", r.Name, r.First, r.Last, r.Protocol))
		}
		if got := brain.SettingsOf(config(), withRanges(service(), strings.Join(again, ","))).Ranges; !slices.Equal(got, ranges) {
			t.Fatalf("%v, and %v when written again", ranges, got)
		}
	})
}

// TestRecordOfRanges: a range has all addresses of the service, but no node port, and all endpoints of all slices, with port 0 and once each.
func TestRecordOfRanges(t *testing.T) {
	svc := withRanges(service(), "rtp=10000-19999/UDP")
	svc.Type, svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs = model.TypeLoadBalancer, addrs("10.96.0.1 fd96::1"), addrs("203.0.113.1"), addrs("203.0.113.2")
	svc.Ports[0].NodePort = 30080
	first, second := slice(state.IPv4, "10.1.0.2", "10.1.0.1"), slice(state.IPv4, "10.1.0.2", "10.1.0.3")
	second.Name, second.Ports = "second", nil
	rec := compute(t, config(), thisNode(), svc, first, second, slice(state.IPv6, "fd01::1"))
	var got []string
	for _, p := range rec.Ports {
		if p.Name != "rtp" {
			if len(p.Internal.Inside.Endpoints) != map[state.Family]int{state.IPv4: 2, state.IPv6: 1}[p.Family] {
				t.Errorf("port %q of %v has %v", p.Name, p.Family, p.Internal.Inside.Endpoints)
			}
			continue
		}
		for _, f := range p.Frontends {
			got = append(got, fmt.Sprint(f.Kind, " ", p.Key(&f)))
		}
		for _, e := range p.Internal.Inside.Endpoints {
			got = append(got, e.Addr.String())
		}
	}
	want := []string{
		"ClusterIP 10.96.0.1:10000-19999/UDP", "ExternalIP 203.0.113.1:10000-19999/UDP", "LoadBalancer 203.0.113.2:10000-19999/UDP",
		"10.1.0.1:0", "10.1.0.2:0", "10.1.0.3:0", "ClusterIP [fd96::1]:10000-19999/UDP", "[fd01::1]:0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the record has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSettingsOfRanges: a range hashes and answers echo requests as the ports of its service do. It has no feature that needs the port of an endpoint.
func TestSettingsOfRanges(t *testing.T) {
	for value, want := range map[string]state.Balance{"hash": state.HashClient, "hash-connection": state.HashConnection, "least-connections": state.Random} {
		svc := withRanges(service(), "rtp=10000-19999/TCP")
		for name, value := range map[string]string{
			model.BalanceAnnotation: value, model.DrainAnnotation: "30s", model.EjectAnnotation: "true", model.PingAnnotation: "true",
		} {
			svc.Annotations = append(svc.Annotations, model.Annotation{Name: name, Value: value})
		}
		for _, p := range compute(t, config(), thisNode(), svc, slice(state.IPv4, "10.1.0.1")).Ports {
			if p.Name != "rtp" {
				if p.Balance == state.Random || !p.Ejection || p.DrainSeconds != 30 {
					t.Errorf("%s: port %q has %+v", value, p.Name, p)
				}
				continue
			}
			if p.Balance != want || p.Ejection || p.DrainSeconds != 0 || !p.Frontends[0].Ping || len(p.Lingering) > 0 {
				t.Errorf("%s: the range has %+v", value, p)
			}
		}
	}
}
