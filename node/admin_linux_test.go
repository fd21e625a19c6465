package node_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
)

func adminAt(t *testing.T, path string) adminv1.AdminClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return adminv1.NewAdminClient(conn)
}

// inspected is a dataplane that reads back what a test says.
type inspected struct {
	*memory
	held backend.Held
}

func (i *inspected) Inspect(backend.Query) (backend.Held, error) {
	if i.held.Verdict == state.Unused {
		return backend.Held{}, errors.New("the kernel says no")
	}
	return i.held, nil
}

// TestProof: an answer has what the dataplane holds, or why that is not known.
func TestProof(t *testing.T) {
	for name, tt := range map[string]struct {
		dataplane func(*memory) node.Dataplane
		want      []string
	}{
		"as in the state": {func(m *memory) node.Dataplane { return &inspected{m, backend.Held{Verdict: state.Reject}} }, []string{`"verdict":"rejected"`, `"kernel":{"dataplane":"custom","verdict":"rejected"}`}},
		"something else": {func(m *memory) node.Dataplane { return &inspected{m, backend.Held{Verdict: state.Drop}} },
			[]string{`"differences":["the kernel's objects say dropped, and the state says rejected"]`}},
		"parts of it differ": {func(m *memory) node.Dataplane {
			return &inspected{m, backend.Held{Verdict: state.Reject, Differences: []string{"one half has something else"}}}
		}, []string{`"verdict":"rejected","differences":["one half has something else"]`}},
		"a hash": {func(m *memory) node.Dataplane {
			to := netip.MustParseAddrPort("10.244.0.1:8080")
			return &inspected{m, backend.Held{Verdict: state.Forward, Endpoints: []netip.AddrPort{to},
				Draw: backend.Draw{Slots: 251, Shares: []int{250}, Hashed: true, Known: true, Slot: 7, Endpoint: to}}}
		}, []string{`"draw":{"slots":251,"shares":[250],"refused":1,"hashed":true,"slot":7,"endpoint":"10.244.0.1:8080"}`}},
		"refused":   {func(m *memory) node.Dataplane { return &inspected{m, backend.Held{}} }, []string{`"unread":"the kernel says no"`}},
		"not known": {func(m *memory) node.Dataplane { return m }, []string{`"unread":"this dataplane does not read back single connections"`}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.sock")
			c := config.Default()
			c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
			c.AdminBindAddress = "unix://" + path
			goOn := make(chan struct{})
			close(goOn)
			m := newMemory(10)
			ready := make(chan int, 1)
			n, err := node.New(t.Context(), node.Options{
				Config: c, OnReady: func(services int) { ready <- services },
				Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) {
					return tt.dataplane(m), nil
				},
				Source: func(_ *config.Config, name string) (model.Source, error) { return &fakeSource{name, goOn}, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := start(t, n)
			<-ready
			answer, err := adminAt(t, path).Explain(ctx, &adminv1.ExplainRequest{From: "node", To: "svc/shop/web"}, grpc.WaitForReady(true))
			for _, want := range tt.want {
				if err != nil || !strings.Contains(answer.GetAnswers()[0], want) {
					t.Errorf("no %s in %v, %v", want, answer, err)
				}
			}
			stop()
		})
	}
}

// standing is a dataplane that knows of endpoints what a test says.
type standing struct {
	*memory
	held  backend.Held
	asked chan backend.Query
}

func (s *standing) InspectEndpoints(q backend.Query) (backend.Held, error) {
	s.asked <- q
	return s.held, nil
}

// standingSource has a Service with an endpoint that answers, one that does not, and one that terminates.
type standingSource struct{ fakeSource }

func (s *standingSource) Run(ctx context.Context, sink model.Sink) error {
	at := func(last byte, ready bool) model.Endpoint {
		return model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, last}), Ready: ready, Serving: true, Terminating: !ready}
	}
	sink.Update([]model.Object{
		&model.Node{Name: s.name, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		&model.Service{
			Name: state.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports:       []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			Annotations: []model.Annotation{{Name: model.DrainAnnotation, Value: "60s"}, {Name: model.EjectAnnotation, Value: "true"}},
		},
		&model.EndpointSlice{
			Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{at(1, true), at(2, true), at(3, false)},
		},
	}, nil)
	sink.Complete()
	<-ctx.Done()
	return nil
}

// TestStanding: endpoints have the states that the dataplane alone knows.
func TestStanding(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
	c.AdminBindAddress = "unix://" + path
	silent, leaves := netip.MustParseAddrPort("10.244.0.2:8080"), netip.MustParseAddrPort("10.244.0.3:8080")
	until := time.Now().Add(time.Minute)
	d := &standing{newMemory(10), backend.Held{
		Silent: []backend.Silent{{Endpoint: silent}}, Deadlines: map[netip.AddrPort]time.Time{leaves: until},
	}, make(chan backend.Query, 1)}
	ready := make(chan int, 1)
	n, err := node.New(t.Context(), node.Options{
		Config: c, OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return d, nil },
		Source: func(_ *config.Config, name string) (model.Source, error) {
			return &standingSource{fakeSource{name: name}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := start(t, n)
	<-ready
	list, err := adminAt(t, path).List(ctx, &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_ENDPOINT}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := list.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, row := range answer.GetRows() {
		states = append(states, row.GetEndpoint().GetState())
		if at := row.GetEndpoint().GetDrainsUntil(); row.GetEndpoint().GetState() == "draining" && !at.AsTime().Equal(until.Truncate(time.Second)) {
			t.Errorf("open connections stay until %v, want %v", at.AsTime(), until)
		}
	}
	if want := []string{"active", "ejected", "draining"}; !slices.Equal(states, want) {
		t.Errorf("the states are %q, want %q", states, want)
	}
	q := <-d.asked
	if q.Frontend.Addr != q.Dst || q.Dst != netip.MustParseAddr("10.96.0.10") || !slices.Equal(q.Endpoints, []netip.AddrPort{leaves}) {
		t.Errorf("the dataplane is asked %+v", q)
	}
	stop()
}

// TestAdmin: a node shows what it knows on a socket, which another configuration moves, and whose loss ends nothing.
func TestAdmin(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "run", "a.sock"), filepath.Join(dir, "b.sock")
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
	c.AdminBindAddress = "unix://" + first
	goOn, ready := make(chan struct{}), make(chan int, 1)
	m := newMemory(10)
	n, err := node.New(t.Context(), node.Options{
		Config: c, Program: "test", Version: "v1.2.3", OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
		Source:    func(_ *config.Config, name string) (model.Source, error) { return &fakeSource{name, goOn}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := start(t, n)

	wait := grpc.WaitForReady(true)
	admin := adminAt(t, first)
	answer, err := admin.GetStatus(ctx, &adminv1.GetStatusRequest{}, wait)
	if s := answer.GetStatus(); err != nil || s.GetRevision() != 0 || s.GetApplied() != 0 || s.GetProgram() != "test" || s.GetVersion() != "v1.2.3" || s.GetMode() != "custom" {
		t.Errorf("before the source is complete: %v, %v", answer, err)
	}
	close(goOn)
	<-ready
	answer, err = admin.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if s := answer.GetStatus(); err != nil || s.GetRevision() == 0 || s.GetApplied() != s.GetRevision() || s.GetServices() != 1 || s.GetNode() != "node-a" ||
		!s.GetHealthy() || len(s.GetProblems()) != 1 || s.GetProblems()[0].GetMessage() != "the source is a fake" {
		t.Errorf("after it: %v, %v", answer, err)
	}
	stream, err := admin.List(ctx, &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE}})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || len(part.GetRows()) != 1 || part.GetRows()[0].GetKey() != "shop/web" {
		t.Errorf("List sends %v, %v", part, err)
	}
	if _, err := admin.Explain(ctx, &adminv1.ExplainRequest{From: "node", To: "svc/shop/db"}); status.Code(err) != codes.NotFound {
		t.Errorf("Explain = %v", err)
	}

	moved := *c
	moved.AdminBindAddress = "unix://" + second
	if err := n.Reconfigure(&moved); err != nil {
		t.Fatal(err)
	}
	if _, err := adminAt(t, second).GetStatus(ctx, &adminv1.GetStatusRequest{}, wait); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(first); !os.IsNotExist(err) {
		t.Errorf("the previous socket: %v", err)
	}
	nowhere := moved
	nowhere.AdminBindAddress = config.AdminNowhere
	if err := n.Reconfigure(&nowhere); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(second); !os.IsNotExist(err) {
		t.Errorf("the socket of an API that is turned off: %v", err)
	}
	impossible := moved
	impossible.AdminBindAddress = "unix://" + filepath.Join(dir, "file", "a.sock")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Reconfigure(&impossible); err != nil {
		t.Fatal(err)
	}
	// The node goes on: Run ends without an error, and not before it is to.
	stop()
}
