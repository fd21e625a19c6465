package server_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/server"
)

// reachable returns a copy of this test binary next to a socket, where other users can reach it.
func reachable(t *testing.T, socket string) (path string) {
	t.Helper()
	path = filepath.Join(filepath.Dir(socket), "self")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	binary, err := os.ReadFile(os.Args[0])
	if err = errors.Join(err, os.WriteFile(path, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// connectAs makes a process of another user watch at a socket, and returns its output: "all" when it has the state, or
// an error.
func connectAs(t *testing.T, user uint32, socket string) string {
	t.Helper()
	cmd := exec.Command(reachable(t, socket))
	cmd.Env = append(os.Environ(), envSocket+"="+socket, envClients+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	hang := time.AfterFunc(20*time.Second, func() { _ = stdin.Close() }) // which ends it
	defer hang.Stop()
	var out strings.Builder
	cmd.Stdout = writer(func(b []byte) {
		out.Write(b)
		_ = stdin.Close()
	})
	_ = cmd.Run() // it reports by itself
	return out.String()
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// TestUsersOfTheSocket: permissions that let everybody open the socket do not let everybody use it.
func TestUsersOfTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run processes of other users")
	}
	for _, c := range []struct {
		name   string
		listed []string
		want   string
	}{
		{"nobody is listed", nil, "PermissionDenied"},
		{"others are listed", []string{"1", "65532"}, "runs as user 65533"},
		{"the user is listed", []string{"1", "65533"}, "all"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "switchyard-server")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, func(o *server.Options) { o.SocketUsers = c.listed })
			w.sink.Complete()
			socket := filepath.Join(dir, "api.sock")
			l, err := server.ListenUnix(socket, 0o666)
			if err != nil {
				t.Fatal(err)
			}
			serveOn(t, w, l)
			if got := connectAs(t, 65533, socket); !strings.Contains(got, c.want) || c.want != "all" && !strings.Contains(got, "--socket-users") {
				t.Errorf("the client said %q, want %q", got, c.want)
			}
		})
	}
}

func TestUnknownUsers(t *testing.T) {
	o := server.Options{Feed: server.Only(nodeName, newWorld(t, nil).store), SocketUsers: []string{"no-such-user"}}
	if _, err := server.New(o); err == nil || !strings.Contains(err.Error(), `SocketUsers: user "no-such-user"`) {
		t.Errorf("got %v", err)
	}
}

// silent has a process of another user hold n connections to a socket, until the test ends. It returns once the process has made them.
func silent(t *testing.T, user uint32, socket string, n int) {
	t.Helper()
	cmd := exec.Command(reachable(t, socket))
	cmd.Env = append(os.Environ(), envSocket+"="+socket, envClients+"="+strconv.Itoa(n), envSilent+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		t.Fatalf("the process of user %d said %q: %v", user, line, err)
	}
}

// TestUserTakesAllConnections: users that may use the socket take places neither from others nor from root.
func TestUserTakesAllConnections(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run processes of other users")
	}
	dir, err := os.MkdirTemp("", "switchyard-server")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *server.Options) {
		o.MaxClients, o.SocketUsers = 100, []string{"65531", "65532", "65533"}
	})
	w.sink.Complete()
	socket := filepath.Join(dir, "api.sock")
	l, err := server.ListenUnix(socket, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, w, l)
	silent(t, 65533, socket, 150) // a share is 64
	if got := connectAs(t, 65532, socket); !strings.Contains(got, "all") {
		t.Errorf("beside one user that has taken its share, another one said %q", got)
	}
	silent(t, 65532, socket, 150)
	if got := connectAs(t, 65531, socket); strings.Contains(got, "all") {
		t.Error("two users did not fill the room")
	}
	newCrowd(t, socket, 1).all() // of root
}
