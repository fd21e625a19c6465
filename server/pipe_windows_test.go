package server_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/client/namedpipe"
	"github.com/switchyard-net/switchyard/server"
)

// TestNamedPipe: both ends say something at the same time, a deadline ends a wait, and nobody else can listen at the pipe.
func TestNamedPipe(t *testing.T) {
	a, err := server.ParseAddress(fmt.Sprintf("npipe:////./pipe/switchyard-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), a, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	isWine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil // which lets anybody add an instance
	if other, err := server.Listen(t.Context(), a, 0, nil); err == nil {
		other.Close()
		if !isWine {
			t.Error("two listen at the same pipe")
		}
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		go func() { _, _ = io.WriteString(c, "hello") }()
		_, _ = io.Copy(c, io.LimitReader(c, 5))
	}()
	c, err := namedpipe.Dial(t.Context(), a.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Fatalf("got %q, %v", b, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(b); !os.IsTimeout(err) {
		t.Errorf("after its deadline, a read ends with %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	if _, err := io.WriteString(c, "again"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "again" {
		t.Errorf("got %q, %v", b, err)
	}
	accepted := make(chan error)
	go func() { _, err := l.Accept(); accepted <- err }()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the listener was closed, Accept returns %v", err)
	}
}

// TestNamedPipeGoneClient: a client that has gone before it is accepted ends nothing, and the next one is served.
func TestNamedPipeGoneClient(t *testing.T) {
	a, err := server.ParseAddress(fmt.Sprintf("npipe:////./pipe/switchyard-test-gone-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), a, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gone, err := namedpipe.Dial(t.Context(), a.Path)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	served := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				served <- err
				return
			}
			if _, err := io.WriteString(c, "hello"); err == nil {
				served <- nil
				return
			}
			c.Close() // the one that has gone
		}
	}()
	c, err := namedpipe.Dial(t.Context(), a.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestAPIOverNamedPipe: clients that name the pipe get the state, also several at the same time, and after others have gone.
func TestAPIOverNamedPipe(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(services(100, 5), nil)
	w.sink.Complete()
	a, err := server.ParseAddress(fmt.Sprintf(`\\.\pipe\switchyard-test-api-%d`, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), a, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, w, l)
	for range 3 {
		var conns []*grpc.ClientConn
		for range 2 {
			conn, err := client.Dial(client.Options{Target: a.String()})
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
			watch(t, soon(t), localnetv1.NewEndpointsClient(conn), subscribe).expectLong()
		}
		for _, conn := range conns {
			conn.Close()
		}
	}
}
