package httpserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/test/await"
)

var quiet = slog.New(slog.DiscardHandler)

// options are the options of a server with room for a few connections.
func options(name, flag string, log *slog.Logger) Options {
	return Options{Name: name, Flag: flag, Logger: log, Connections: connlimit.New(connlimit.Options{
		Name: name, Max: 8, PerClient: 4, ThisMachine: 4, Replace: true, Logger: log,
	})}
}

func TestServeFinishesWhatItBegan(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, finish := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		io.WriteString(w, "done")
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, h, options("", "", quiet)) }()
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + l.Addr().String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answer <- string(body)
	}()
	<-begun
	cancel()
	select {
	case err := <-served:
		t.Fatalf("Serve = %v before the request was answered", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	if got := <-answer; got != "done" {
		t.Errorf("the client got %q", got)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve = %v", err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("still listening")
	}
}

func TestServeAfterTheEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Serve(ctx, l, http.NotFoundHandler(), options("", "", quiet)); err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// TestBindAgain lets the address be in use at first, and then the listener break.
func TestBindAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var attempts []time.Duration
		listen := func(_ context.Context, network, address string) (net.Listener, error) {
			attempts = append(attempts, time.Since(start))
			if network != "tcp" || address != "0.0.0.0:10256" {
				t.Errorf("listen on %s %s", network, address)
			}
			if len(attempts) == 4 {
				cancel()
			}
			if len(attempts) == 3 {
				return brokenListener{}, nil
			}
			return nil, errors.New("address already in use")
		}
		var log bytes.Buffer
		s := NewServer(http.NotFoundHandler(), options("health", "--healthz-bind-address", slog.New(slog.NewTextHandler(&log, nil))))
		s.listen = listen
		s.SetAddress("0.0.0.0:10256", false)
		if err := s.Run(ctx); err != nil {
			t.Errorf("got %v, want nil after the end", err)
		}
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second}
		if len(attempts) != 4 || attempts[1] != want[1] || attempts[2] != want[2] || attempts[3] != want[3] {
			t.Errorf("tried at %v, want %v", attempts, want)
		}
		for _, what := range []string{"serve health on 0.0.0.0:10256: address already in use", "choose another address with --healthz-bind-address", "broken"} {
			if !strings.Contains(log.String(), what) {
				t.Errorf("the log does not say %q:\n%s", what, log.String())
			}
		}
	})
}

type brokenListener struct{}

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("broken") }
func (brokenListener) Close() error              { return nil }
func (brokenListener) Addr() net.Addr            { return &net.TCPAddr{} }

func TestHardFail(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := NewServer(http.NotFoundHandler(), options("metrics", "--metrics-bind-address", quiet))
	s.SetAddress(l.Addr().String(), true)
	err = s.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "; free the port or choose another address with --metrics-bind-address") {
		t.Errorf("got %v", err)
	}
}

// TestAddressMoves changes the address of a server under constant requests. The old address is closed only once the new one
// answers, and stays while another program has the new one.
func TestAddressMoves(t *testing.T) {
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var mu sync.Mutex
	var bound []string
	warned := make(chan string, 10)
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}),
		options("health", "healthzBindAddress", slog.New(slog.NewTextHandler(lineWriter(warned), nil))))
	listens := make(chan string, 10)
	s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		mu.Lock()
		old := slices.Clone(bound)
		mu.Unlock()
		for _, a := range old { // what was served still is while the new address is being bound
			if port(a) != port(address) && !answers(a) {
				t.Errorf("%s was closed before %s was bound", a, address)
			}
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		if err == nil {
			mu.Lock()
			bound = []string{address}
			mu.Unlock()
			listens <- address
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	first, second := free(), free()
	for _, address := range []string{first, second} {
		s.SetAddress(address, false)
		if got := <-listens; got != address {
			t.Fatalf("bound %s, want %s", got, address)
		}
	}
	await.Until(t, "the first address is closed", func() bool { return answers(second) && !answers(first) })

	s.SetAddress(taken.Addr().String(), false)
	if got := <-warned; !strings.Contains(got, "meanwhile="+second) {
		t.Errorf("warning: %s", got)
	}
	if !answers(second) {
		t.Error("the old address was given up for one that cannot be bound")
	}

	_, p, _ := net.SplitHostPort(second)
	s.SetAddress("0.0.0.0:"+p, false) // excludes the old one
	if got := <-listens; got != "0.0.0.0:"+p {
		t.Errorf("bound %s", got)
	}
	await.Until(t, "the port is served again", func() bool { return answers(second) })
	s.SetAddress("192.0.2.1:"+p, false) // is nobody's here
	if got := <-listens; got != "0.0.0.0:"+p {
		t.Errorf("bound %s, want the old address again", got)
	}
	await.Until(t, "the old address is served again", func() bool { return answers(second) })
	s.SetAddress("", false)
	await.Until(t, "nothing is served", func() bool { return !answers(second) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func answers(address string) bool {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + address)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return true
}

// lineWriter sends the written lines.
type lineWriter chan<- string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
