package store

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestHealthCheckPortConflicts has a healthCheckNodePort that is a nodePort, of another service or of its own, or the
// healthCheckNodePort of an older service. It is not served, and the problem names the field and the holder. It is
// served once the other service releases it.
func TestHealthCheckPortConflicts(t *testing.T) {
	named := func(name string) state.ServiceName { return state.ServiceName{Namespace: "default", Name: name} }
	balancer := func(name string, n byte, healthPort, nodePort uint16) *model.Service {
		return &model.Service{
			Name: named(name), Type: model.TypeLoadBalancer, ExternalLocal: true, HealthCheckNodePort: healthPort, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, n})},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80, NodePort: nodePort}},
		}
	}
	udp := balancer("b", 2, 0, 30080)
	udp.Ports[0].Protocol = state.UDP
	for name, c := range map[string]struct {
		a, b    *model.Service
		holder  string // of the port that a wants, empty if a has it
		problem string
	}{
		"a nodePort":         {balancer("a", 1, 30080, 0), balancer("b", 2, 0, 30080), "b", "30080/TCP is a nodePort or the healthCheckNodePort of another service, which gets what load balancers ask there"},
		"its own nodePort":   {balancer("a", 1, 30080, 30080), balancer("b", 2, 30090, 30091), "a", "30080/TCP is a nodePort of the same service"},
		"the same port":      {balancer("c", 1, 30080, 0), balancer("b", 2, 30080, 0), "b", "30080/TCP is a nodePort or the healthCheckNodePort of another service, which gets what load balancers ask there"},
		"another protocol":   {balancer("a", 1, 30080, 0), udp, "", ""},
		"a port of its own":  {balancer("a", 1, 30080, 30081), balancer("b", 2, 30090, 30091), "", ""},
		"besides a frontend": {balancer("a", 1, 30080, 30085), balancer("b", 2, 30080, 30085), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			s := New(Options{Brain: brain.Config{NodeName: "n"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			sink := s.Source("test")
			sink.Update([]model.Object{c.a, c.b}, nil)
			sink.Complete()
			cluster := NewCluster(ClusterOptions{})
			clusterSink := cluster.Source("test")
			clusterSink.Update([]model.Object{c.a, c.b}, nil)
			clusterSink.Complete()
			u, err := cluster.Node("n").Next(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			want := c.a.HealthCheckNodePort
			if c.holder != "" {
				want = 0
			}
			got := s.Snapshot().Get(c.a.Name)
			if got.HealthCheck.Port != want {
				t.Errorf("the health check of %v is %+v, want port %d", c.a.Name, got.HealthCheck, want)
			}
			for _, r := range u.Changed {
				if r.Name == c.a.Name && !r.Equal(got) {
					t.Errorf("a relay says %+v, the node itself %+v", r, got)
				}
			}
			if hasPorts := len(c.a.Ports) == len(got.Ports) && got.Ports[0].Frontends[0].Kind == state.ClusterIP; !hasPorts {
				t.Errorf("the record has lost more than that: %+v", got)
			}
			problems := s.problems.ofService(c.a.Name)
			if c.holder == "" {
				if len(problems) > 0 {
					t.Errorf("the problems are %v", problems)
				}
				return
			}
			if len(problems) != 1 || problems[0].Reason != AddressConflict || problems[0].Field != "spec.healthCheckNodePort" || !strings.HasPrefix(problems[0].Note, c.problem) {
				t.Errorf("the problems are %v, want %q", problems, c.problem)
			}
			if text := log.String(); !strings.Contains(text, "field=spec.healthCheckNodePort") || !strings.Contains(text, "heldBy=default/"+c.holder) {
				t.Errorf("the log is %q", text)
			}
			if lost := s.Explain(c.a.Name).Lost; len(lost) == 0 || lost[0].Kind != HealthCheckPort || lost[0].Holder != named(c.holder) {
				t.Errorf("explained by %+v", lost)
			}
			if c.holder == c.a.Name.Name {
				return
			}
			sink.Update(nil, []model.Ref{c.b.Ref()})
			if got := s.Snapshot().Get(c.a.Name); got.HealthCheck.Port != c.a.HealthCheckNodePort || len(s.Problems()) > 0 {
				t.Errorf("without the other, the health check is %+v, the problems %v", got.HealthCheck, s.Problems())
			}
		})
	}
}
