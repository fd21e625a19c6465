package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// TestHealth: there is none before the first state, nor after the end.
func TestHealth(t *testing.T) {
	const serving, notServing = healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING
	var ready chan struct{}
	for name, c := range map[string]struct {
		change func(*server.Options)
		before healthv1.HealthCheckResponse_ServingStatus
		begin  func(*world)
	}{
		"with a node":      {nil, notServing, func(w *world) { w.sink.Complete() }},
		"without a node":   {func(o *server.Options) { o.Node = "" }, serving, func(*world) {}},
		"when it is ready": {func(o *server.Options) { ready = make(chan struct{}); o.Ready = ready }, notServing, func(*world) { close(ready) }},
		"with a late node": {func(o *server.Options) {
			calls, feed := 0, o.Feed
			o.Feed = func(node string) (state.Feed, error) {
				if calls++; calls < 3 {
					return nil, server.ErrNoNode
				}
				return feed(node)
			}
		}, notServing, func(w *world) { w.sink.Complete() }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.change, func(t *testing.T, w *world) {
				h := healthv1.NewHealthClient(w.dial())
				check := func(want healthv1.HealthCheckResponse_ServingStatus) {
					t.Helper()
					for _, service := range []string{"", "switchyard.localnet.v1.Endpoints"} {
						r, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
						if err != nil || r.GetStatus() != want {
							t.Errorf("service %q: got %v, %v; want %v", service, r, err, want)
						}
					}
				}
				synctest.Wait()
				check(c.before)
				c.begin(w)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				check(serving)
				stream, err := h.Watch(t.Context(), &healthv1.HealthCheckRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if r, err := stream.Recv(); err != nil || r.GetStatus() != serving {
					t.Errorf("got %v, %v", r, err)
				}
				w.stop()
				for err == nil {
					_, err = stream.Recv()
				}
				if status.Code(err) != codes.Unavailable {
					t.Errorf("the stream ended with %v", err)
				}
			})
		})
	}
}

// TestReflection checks the list of services that the server serves.
func TestReflection(t *testing.T) {
	stream, err := reflectionv1.NewServerReflectionClient(newWorld(t, nil).dial()).ServerReflectionInfo(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "switchyard.localnet.v1.Endpoints",
	}})
	r, err := stream.Recv()
	if err != nil || len(r.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("got %v, %v", r, err)
	}
	_ = stream.CloseSend()
}
