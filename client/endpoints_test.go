package client

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// state is an answer to Next.
func state(instance, rev uint64, services ...*localnetv1.ServiceEndpoints) []*localnetv1.NextItem {
	items := []*localnetv1.NextItem{{Next: &localnetv1.NextFilter{InstanceId: instance, Rev: rev}, Node: node("a")}}
	for _, s := range services {
		items = append(items, &localnetv1.NextItem{Endpoints: s})
	}
	return items
}

// poll waits for the next call.
func (s *script) poll(t *testing.T) *poll {
	t.Helper()
	select {
	case p := <-s.nexts:
		return p
	case <-time.After(time.Hour):
		t.Fatal("no client has called within an hour")
		return nil
	}
}

func (w *wire) client() *EndpointsClient {
	o := w.options()
	return &EndpointsClient{Target: o.Target, DialOptions: o.DialOptions}
}

type result struct {
	items    []*localnetv1.ServiceEndpoints
	canceled bool
}

func goNext(epc *EndpointsClient) <-chan result {
	c := make(chan result, 1)
	go func() {
		items, canceled := epc.Next()
		c <- result{items, canceled}
	}()
	return c
}

func (r result) names() string {
	var names []string
	for _, s := range r.items {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func TestNextReturnsTheWholeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		epc := net.client()
		defer epc.Cancel()
		epc.Node = "a"
		got := goNext(epc)
		p := srv.poll(t)
		if want := (&localnetv1.NextFilter{Node: "a"}); !proto.Equal(p.filter, want) {
			t.Errorf("the first filter is %v, want %v", p.filter, want)
		}
		web := service("web", 1, 3)
		p.answer(t, nil, state(7, 1, service("db", 1, 1), web)...)
		if r := <-got; r.canceled || r.names() != "db web" || !proto.Equal(r.items[1], web) {
			t.Errorf("got %v", r)
		}
		if epc.InstanceID != 7 || epc.Rev != 1 {
			t.Errorf("the client is at %d/%d", epc.InstanceID, epc.Rev)
		}
		// The server may be quiet for long.
		got = goNext(epc)
		p = srv.poll(t)
		if want := (&localnetv1.NextFilter{InstanceId: 7, Rev: 1, Node: "a"}); !proto.Equal(p.filter, want) {
			t.Errorf("the second filter is %v, want %v", p.filter, want)
		}
		time.Sleep(24 * time.Hour)
		p.answer(t, nil, state(7, 3)...)
		if r := <-got; r.canceled || len(r.items) != 0 || epc.Rev != 3 {
			t.Errorf("got %v", r)
		}
		if len(net.attempts()) != 1 {
			t.Errorf("two calls have made %d connections", len(net.attempts()))
		}
	})
}

func TestNextNeverFails(t *testing.T) {
	broken := map[string]func(t *testing.T, p *poll){
		"refused":          func(t *testing.T, p *poll) { p.answer(t, status.Error(codes.PermissionDenied, "not you")) },
		"nothing":          func(t *testing.T, p *poll) { p.answer(t, nil) },
		"broken off":       func(t *testing.T, p *poll) { p.answer(t, errDown, state(7, 1, service("web", 1, 1))...) },
		"no filter":        func(t *testing.T, p *poll) { p.answer(t, nil, state(7, 1, service("web", 1, 1))[1:]...) },
		"an empty item":    func(t *testing.T, p *poll) { p.answer(t, nil, append(state(7, 1), &localnetv1.NextItem{})...) },
		"a second filter":  func(t *testing.T, p *poll) { p.answer(t, nil, append(state(7, 1), state(7, 2)...)...) },
		"connection ended": nil,
	}
	for name, fail := range broken {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net wire
				srv := newScript()
				stop := net.serve(t, srv)
				epc := net.client()
				defer epc.Cancel()
				epc.ErrorDelay = 3 * time.Second
				got := goNext(epc)
				p := srv.poll(t)
				if fail != nil {
					fail(t, p)
				} else {
					stop()
					synctest.Wait()
					net.serve(t, srv)
				}
				p = srv.poll(t)
				if since() != 3*time.Second {
					t.Errorf("tried again at %v, want after ErrorDelay", since())
				}
				if p.filter.InstanceId != 0 || p.filter.Rev != 0 {
					t.Errorf("a state that was not whole has moved the filter: %v", p.filter)
				}
				p.answer(t, nil, state(8, 1, service("new", 1, 1))...)
				if r := <-got; r.names() != "new" {
					t.Errorf("got %s, want only what came whole", r.names())
				}
			})
		})
	}
}

func TestNextTriesAgainWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		epc := net.client()
		got := goNext(epc)
		time.Sleep(2500 * time.Millisecond)
		if want := []time.Duration{0, time.Second, 2 * time.Second}; !slices.Equal(net.attempts(), want) {
			t.Errorf("tried to connect at %v, want %v", net.attempts(), want)
		}
		epc.Cancel()
		if r := <-got; !r.canceled || r.items != nil || since() != 2500*time.Millisecond {
			t.Errorf("canceled: got %v at %v", r, since())
		}
	})
}

func TestCancelClosesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		epc := net.client()
		got := goNext(epc)
		p := srv.poll(t)
		epc.Cancel()
		if r := <-got; !r.canceled || since() != 0 {
			t.Errorf("got %v at %v", r, since())
		}
		synctest.Wait()
		if p.stream.Context().Err() == nil {
			t.Error("the server's stream is still open")
		}
		for range 2 {
			if _, canceled := epc.Next(); !canceled {
				t.Error("a canceled client goes on")
			}
			epc.Cancel()
		}
		if len(net.attempts()) != 1 {
			t.Error("a canceled client connects")
		}
	})
}

// pflags has the methods of a *pflag.FlagSet, which this module does not need.
type pflags interface {
	StringVar(p *string, name string, value string, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
}

func TestFlags(t *testing.T) {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	epc := New(pflags(flags))
	if epc.Target != DefaultTarget || epc.ErrorDelay != time.Second || epc.Rev != 0 {
		t.Errorf("the defaults are %+v", epc)
	}
	err := flags.Parse([]string{"--target", "127.0.0.1:1", "--instance-id", "18446744073709551615", "--rev", "8", "--error-delay", "2s", "--node", "n",
		"--tls-ca", "ca.pem", "--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-server-name", "relay"})
	if err != nil {
		t.Fatal(err)
	}
	if epc.Target != "127.0.0.1:1" || epc.InstanceID != 1<<64-1 || epc.Rev != 8 || epc.ErrorDelay != 2*time.Second || epc.Node != "n" ||
		epc.files != (TLSFiles{"ca.pem", "cert.pem", "key.pem", "relay"}) {
		t.Errorf("the flags make %+v", epc)
	}
	if _, err := epc.connect(context.Background()); err == nil || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("files that are missing: error %v", err)
	}
	// A program may have other defaults.
	own := &EndpointsClient{Target: "tcp://127.0.0.1:2", ErrorDelay: time.Minute}
	own.DefaultFlags(flag.NewFlagSet("test", flag.ContinueOnError))
	if own.Target != "tcp://127.0.0.1:2" || own.ErrorDelay != time.Minute {
		t.Errorf("defaults of a program's own: %+v", own)
	}
}

func TestRunCallsTheHandlersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		var calls []string
		handler := func(name string) HandlerFunc {
			return func(items []*localnetv1.ServiceEndpoints) {
				calls = append(calls, name+" "+result{items: items}.names())
			}
		}
		epc := net.client()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			epc.run(false, nil, []HandlerFunc{handler("first"), handler("second")})
		}()
		srv.poll(t).answer(t, nil, state(1, 1, service("a", 1, 1))...)
		srv.poll(t).answer(t, nil, state(1, 2, service("b", 1, 1))...)
		srv.poll(t)
		epc.Cancel()
		<-ended
		if want := []string{"first a", "second a", "first b", "second b"}; !slices.Equal(calls, want) {
			t.Errorf("calls: %q, want %q", calls, want)
		}
	})
}

// TestTheExampleProgramRuns builds the program and lets it talk to a server on a real socket.
func TestTheExampleProgramRuns(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "example")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./example")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	srv := newFast(3)
	for network, address := range map[string]string{"unix": filepath.Join(dir, "api.sock"), "tcp": "127.0.0.1:0"} {
		t.Run(network, func(t *testing.T) {
			var out, errs bytes.Buffer
			cmd := exec.CommandContext(t.Context(), bin, "--once", "--target", serveReal(t, network, address, srv))
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, errs.String())
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != 4 || !strings.HasPrefix(lines[0], "# ") || !strings.Contains(lines[3], "service-00002") {
				t.Errorf("the program prints:\n%s", out.String())
			}
			if want := "to resume this watch, use --instance-id 1 --rev 1\n"; errs.String() != want {
				t.Errorf("the program says %q, want %q", errs.String(), want)
			}
		})
	}
}

func ExampleEndpointsClient() {
	epc := &EndpointsClient{Target: "unix:///run/switchyard/api.sock"}
	epc.CancelOnSignals()
	for {
		items, canceled := epc.Next()
		if canceled {
			return
		}
		fmt.Println(len(items), "services")
	}
}
