//go:build linux

package client

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// envServe has this test binary serve a state on the socket at a path, until its input ends.
const envServe = "SWITCHYARD_TEST_SERVE"

func TestMain(m *testing.M) {
	path := os.Getenv(envServe)
	if path == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	srv := grpc.NewServer()
	localnetv1.RegisterEndpointsServer(srv, polled{newMemory(1, service("web", 1, 1))})
	go func() { _ = srv.Serve(l) }()
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// polled also serves whole states: one service.
type polled struct{ *memory }

func (polled) Next(_ *localnetv1.NextFilter, stream grpc.ServerStreamingServer[localnetv1.NextItem]) error {
	return errors.Join(stream.Send(&localnetv1.NextItem{Next: &localnetv1.NextFilter{InstanceId: 1, Rev: 1}, Node: node("a")}),
		stream.Send(&localnetv1.NextItem{Endpoints: service("web", 1, 1)}))
}

// hijack has another user serve a socket in a directory that everybody may write, and returns the path.
func hijack(t *testing.T, user uint32) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a process of another user")
	}
	dir, err := os.MkdirTemp("", "switchyard-client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary, err := os.ReadFile(os.Args[0])
	self := filepath.Join(dir, "self") // where the other user can reach it
	if err = errors.Join(err, os.Chmod(dir, 0o777), os.WriteFile(self, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "api.sock")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envServe+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return path
}

// TestHijackedSocket: a process of another user that serves the socket is not believed, unless the user is listed.
func TestHijackedSocket(t *testing.T) {
	const other = "65533"
	path := hijack(t, 65533)
	for name, c := range map[string]struct {
		users    []string
		believed bool
	}{"nobody is listed": {}, "others are listed": {users: []string{"1", "65532"}}, "the user is listed": {[]string{other}, true}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			refused := ""
			w, err := NewWatcher(Options{Target: "unix://" + path, SocketUsers: c.users, OnError: func(err error) {
				if strings.Contains(err.Error(), "user 65533") { // the first attempts may come before the socket is there
					refused = err.Error()
					cancel()
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			believed := false
			for range w.Updates(ctx) {
				believed = true
				cancel()
			}
			if believed != c.believed || believed == (refused != "") {
				t.Errorf("updates came: %v, want %v; refused by %q", believed, c.believed, refused)
			}
			if !believed && !strings.Contains(refused, "list its user") {
				t.Errorf("the error %q has no remedy", refused)
			}
		})
	}
	t.Run("whole states", func(t *testing.T) {
		epc := &EndpointsClient{Target: "unix://" + path, ErrorDelay: time.Millisecond}
		time.AfterFunc(200*time.Millisecond, epc.Cancel)
		if items, canceled := epc.Next(); !canceled {
			t.Errorf("got %v of the wrong user", items)
		}
		epc = &EndpointsClient{Target: "unix://" + path, SocketUsers: []string{other}}
		time.AfterFunc(20*time.Second, epc.Cancel)
		if items, canceled := epc.Next(); canceled || len(items) != 1 {
			t.Errorf("got %v of a listed user", items)
		}
	})
}
