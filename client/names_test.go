package client

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// namesServer answers each call of NextNames with the next of answers, and waits after the last one.
type namesServer struct {
	localnetv1.UnimplementedEndpointsServer
	answers []func(grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error
	asked   []string
}

func (s *namesServer) NextNames(r *localnetv1.NextNamesRequest, stream grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error {
	s.asked = append(s.asked, fmt.Sprintf("%d/%d", r.GetResume().GetInstanceId(), r.GetResume().GetRev()))
	if len(s.answers) == 0 {
		_ = stream.SendHeader(nil)
		<-stream.Context().Done()
		return nil
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	return next(stream)
}

func named(full bool, at *localnetv1.Position, names ...string) *localnetv1.NextNamesResponse {
	r := &localnetv1.NextNamesResponse{Full: full, Position: at}
	for _, n := range names {
		r.Changed = append(r.Changed, &localnetv1.ServiceNames{Namespace: "ns", Name: n})
	}
	return r
}

// TestRunNames has a server that answers in parts, breaks off, ends calls without an answer, and refuses. Each update
// is delivered once and whole, and the next call resumes from the last one.
func TestRunNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(err error, parts ...*localnetv1.NextNamesResponse) func(grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error {
			return func(stream grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error {
				for _, p := range parts {
					if err := stream.Send(p); err != nil {
						return err
					}
				}
				return err
			}
		}
		s := &namesServer{answers: []func(grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error{
			answer(status.Error(codes.Unimplemented, "no names")),
			answer(status.Error(codes.Unavailable, "going"), named(true, nil, "lost")),
			answer(nil, named(true, nil, "a"), named(true, at(7, 1), "b")),
			answer(nil),
			answer(nil, named(false, nil, "c"), named(true, at(7, 2), "d")), // broken
			answer(nil, named(false, at(7, 3), "e")),
		}}
		w := &wire{}
		stop := w.serve(t, s)
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		failures := 0
		o := w.options()
		o.OnError = func(error) { failures++ }
		go func() {
			done <- RunNames(ctx, o, func(u *NamesUpdate) {
				var text strings.Builder
				text.WriteString(fmt.Sprint(u.Full, u.Position.Rev))
				for _, n := range u.Changed {
					text.WriteString(" " + n.Name)
				}
				if got = append(got, text.String()); len(got) == 2 {
					cancel()
				}
			})
		}()
		if err := <-done; err != nil {
			t.Error(err)
		}
		stop()
		if text := fmt.Sprintf("%q %v, %d failures", got, s.asked, failures); text != `["true 1 a b" "false 3 e"] [0/0 0/0 0/0 7/1 7/1 7/1], 4 failures` {
			t.Errorf("got %s", text)
		}
	})
}

func TestCheckNames(t *testing.T) {
	good := func() *localnetv1.ServiceNames {
		port := []*localnetv1.NamedPort{{Protocol: localnetv1.Protocol_PROTOCOL_TCP, Port: 80}}
		return &localnetv1.ServiceNames{
			Namespace: "ns", Name: "a", ClusterIps: [][]byte{{10, 96, 0, 1}}, Ports: port,
			Endpoints: []*localnetv1.EndpointGroup{{Ports: port, Endpoints: []*localnetv1.NamedEndpoint{{Address: []byte{10, 1, 0, 1}}}}},
		}
	}
	if err := CheckNames(good()); err != nil {
		t.Error(err)
	}
	for want, breaks := range map[string]func(*localnetv1.ServiceNames){
		"service ns/: the name or namespace is empty":                              func(n *localnetv1.ServiceNames) { n.Name = "" },
		"service ns/a: cluster_ips[0]: 3 bytes make no address":                    func(n *localnetv1.ServiceNames) { n.ClusterIps[0] = []byte{1, 2, 3} },
		"service ns/a: ports[0].port: 0 is not from 1 to 65535":                    func(n *localnetv1.ServiceNames) { n.Ports[0].Port = 0 },
		"service ns/a: endpoints[0].endpoints[0].address: 0 bytes make no address": func(n *localnetv1.ServiceNames) { n.Endpoints[0].Endpoints[0].Address = nil },
	} {
		n := good()
		if breaks(n); CheckNames(n) == nil || CheckNames(n).Error() != want {
			t.Errorf("got %v, want %s", CheckNames(n), want)
		}
	}
}
