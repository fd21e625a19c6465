package server_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/server"
)

func TestParseAddress(t *testing.T) {
	for _, c := range []struct {
		in, out string // out is empty if the input is refused
		exposed bool
	}{
		{"unix:///run/switchyard/api.sock", "unix:///run/switchyard/api.sock", false},
		{"unix:///run//a/../b", "unix:///run/b", false},
		{"npipe:////./pipe/switchyard", "npipe:////./pipe/switchyard", false},
		{`\\.\pipe\a\b`, "npipe:////./pipe/a/b", false},
		{"npipe:////relay/pipe/a", "", false},
		{"tcp://127.0.0.1:12345", "tcp://127.0.0.1:12345", false},
		{"127.0.0.1:12345", "tcp://127.0.0.1:12345", false},
		{"[::1]:12345", "tcp://[::1]:12345", false},
		{"0.0.0.0:12345", "tcp://0.0.0.0:12345", true},
		{"localhost:12345", "", false},
		{"127.0.0.1", "", false},
		{":12345", "", false},
		{"tcp://127.1.2.3:1", "tcp://127.1.2.3:1", false},
		{"tcp://[::1]:1", "tcp://[::1]:1", false},
		{"tcp://[::ffff:127.0.0.1]:1", "tcp://[::ffff:127.0.0.1]:1", false},
		{"tcp://0.0.0.0:1", "tcp://0.0.0.0:1", true},
		{"tcp://[::]:1", "tcp://[::]:1", true},
		{"tcp://192.0.2.1:1", "tcp://192.0.2.1:1", true},
		{"tcp://localhost:1", "", false},
		{"tcp://:1", "", false},
		{"tcp://127.0.0.1", "", false},
		{"unix://run/a", "", false},
		{"unix:/run/a", "", false},
		{"unix://", "", false},
		{"/run/a", "", false},
		{"", "", false},
	} {
		a, err := server.ParseAddress(c.in)
		if c.out == "" {
			if err == nil || !strings.Contains(err.Error(), `"`+c.in+`"`) {
				t.Errorf("%q: got %v, %v; want an error that names it", c.in, a, err)
			}
			continue
		}
		if err != nil || a.String() != c.out || a.Exposed() != c.exposed {
			t.Errorf("%q: got %v, exposed: %v, %v", c.in, a, a.Exposed(), err)
		}
	}
}

// TestExposedNeedsTLS, whatever makes the listener.
func TestExposedNeedsTLS(t *testing.T) {
	a, err := server.ParseAddress("tcp://0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(t.Context(), a, 0, nil); err == nil || !strings.Contains(err.Error(), "configure TLS") {
		t.Errorf("Listen: %v", err)
	}
	l, err := server.Listen(t.Context(), a, 0, &server.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	if err := newWorld(t, nil).server.Serve(soon(t), l, nil); err == nil || !strings.Contains(err.Error(), "configure TLS") {
		t.Errorf("Serve: %v", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("Serve did not close the listener")
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "api.sock")
	a, err := server.ParseAddress("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), a, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	mode := func(want fs.FileMode) {
		t.Helper()
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != want|fs.ModeSocket {
			t.Fatalf("the socket is %v, %v", info, err)
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
			t.Errorf("there are %v beside the socket, %v", entries, err)
		}
	}
	mode(0o600)
	if got := l.Addr().String(); got != path {
		t.Errorf("the listener is at %s", got)
	}

	if _, err := server.ListenUnix(path, 0); err == nil || !strings.Contains(err.Error(), "another process serves") {
		t.Errorf("a socket that is served was taken: %v", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the socket that was served is so no more: %v", err)
	}
	_ = conn.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the closed listener left its socket: %v", err)
	}

	dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	first, err := server.ListenUnix(path, 0o666)
	if err != nil {
		t.Fatalf("a dead process's socket was not replaced: %v", err)
	}
	mode(0o666)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := server.ListenUnix(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	mode(0o660) // of the second one, which the first must not remove
	_ = second.Close()

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ListenUnix(path, 0); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file was taken for a socket: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

// TestOneOfMany: if several servers begin at the same moment on one path, one serves and all others report it. This
// holds for a free path and for the socket of a dead process.
func TestOneOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for round := range 50 {
		if round%2 == 1 {
			dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
			if err != nil {
				t.Fatal(err)
			}
			dead.SetUnlinkOnClose(false)
			_ = dead.Close()
		}
		const many = 8
		var (
			begin, done sync.WaitGroup
			listeners   [many]net.Listener
			errs        [many]error
		)
		begin.Add(many)
		for i := range many {
			done.Go(func() {
				begin.Done()
				begin.Wait()
				listeners[i], errs[i] = server.ListenUnix(path, 0)
			})
		}
		done.Wait()
		serving := 0
		for i, l := range listeners {
			if l != nil {
				serving++
			} else if !strings.Contains(errs[i].Error(), "another process serves this socket") {
				t.Error(errs[i])
			}
		}
		if serving != 1 {
			t.Fatalf("round %d: %d of %d serve one path, want 1: %v", round, serving, many, errs)
		}
		for _, l := range listeners {
			if l != nil {
				_ = l.Close()
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
			t.Fatalf("they leave %v, %v", entries, err)
		}
	}
}

// TestLockOfTheDead: the file of a lock that nobody holds is in nobody's way, and one that cannot be locked is named.
func TestLockOfTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := server.ListenUnix(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := os.Mkdir(path+".lock", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ListenUnix(path, 0); err == nil || !strings.Contains(err.Error(), path+".lock") {
		t.Errorf("a directory in the place of the lock: %v", err)
	}
}

// TestLongPaths: every path that a client can connect to can be listened on. Longer paths get an error with the reason.
func TestLongPaths(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, n := range []int{94, 95, 106, 107} {
		path := filepath.Join(dir, strings.Repeat("d", n-len(dir)-len("/")-len("/s")), "s")
		l, err := server.ListenUnix(path, 0)
		if err != nil {
			t.Errorf("%d bytes: %v", len(path), err)
			continue
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Errorf("%d bytes: %v", len(path), err)
		} else {
			_ = conn.Close()
		}
		_ = l.Close()
		if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) > 0 {
			t.Errorf("%d bytes: it leaves %v", len(path), entries)
		}
	}
	long := filepath.Join(dir, strings.Repeat("d", 108-len(dir)-len("/")))
	_, err = server.ListenUnix(long, 0)
	if err == nil || !strings.Contains(err.Error(), "unix://"+long) || !strings.Contains(err.Error(), "107") {
		t.Errorf("108 bytes: %v", err)
	}
}
