package server_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/server"
)

// connectAs has a process of another user watch at a socket, and returns what it says: "all" when it has the state, or an error.
func connectAs(t *testing.T, user uint32, socket string) string {
	t.Helper()
	binary, err := os.ReadFile(os.Args[0])
	self := filepath.Join(filepath.Dir(socket), "self") // where the other user can reach it
	if err = errors.Join(err, os.WriteFile(self, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
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
		{"others are listed", []string{"1", "65532"}, "one of user 65533"},
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
