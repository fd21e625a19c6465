package healthz

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
	go func() { served <- Serve(ctx, l, h, nil) }()
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
	if err := Serve(ctx, l, http.NotFoundHandler(), nil); err != nil {
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
		o := ServeOptions{Name: "health", Flag: "--healthz-bind-address", Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := listenAndServe(ctx, "0.0.0.0:10256", http.NotFoundHandler(), o, listen); err != nil {
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = ListenAndServe(ctx, l.Addr().String(), http.NotFoundHandler(), ServeOptions{Name: "metrics", Flag: "--metrics-bind-address", HardFail: true})
	if err == nil || !strings.Contains(err.Error(), "address already in use; free the port or choose another address with --metrics-bind-address") {
		t.Errorf("got %v", err)
	}
}
