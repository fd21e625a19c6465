//go:build linux

package peeruser_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/client/peeruser"
)

// envSocket has this test binary listen at a path, or connect to it if it is there, until its input ends.
const envSocket = "SWITCHYARD_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(envSocket); path != "" {
		var buf [1]byte
		if _, err := net.Dial("unix", path); err != nil {
			if _, err := net.Listen("unix", path); err != nil {
				panic(err)
			}
		}
		_, _ = os.Stdin.Read(buf[:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// socketOf returns the path of a socket in a directory that everybody may write, as a careless operator has it.
func socketOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "peeruser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "s")
}

// runAs runs this test binary as a user, at a socket.
func runAs(t *testing.T, user uint32, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a process of another user")
	}
	self := filepath.Join(filepath.Dir(path), "self") // where another user can reach it
	binary, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(self, binary, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envSocket+"="+path)
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
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn.(*net.UnixConn)
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

const stranger = 65533

// check checks a connection with a list of users.
func check(t *testing.T, conn *net.UnixConn, users ...string) error {
	t.Helper()
	u, err := peeruser.Parse(users)
	if err != nil {
		t.Fatal(err)
	}
	return u.Check(conn)
}

func wantRefused(t *testing.T, err error) {
	t.Helper()
	if refused, ok := errors.AsType[*peeruser.Error](err); !ok || refused.User != stranger || !strings.Contains(err.Error(), "user 65533") {
		t.Errorf("got %v, want an error that names user %d", err, stranger)
	}
}

// TestServedByAnotherUser is seen by who connects.
func TestServedByAnotherUser(t *testing.T) {
	path := socketOf(t)
	runAs(t, stranger, path)
	conn := dial(t, path)
	wantRefused(t, check(t, conn))
	wantRefused(t, check(t, conn, "1", "65532"))
	if err := check(t, conn, "1", "65533"); err != nil {
		t.Errorf("a listed user is refused: %v", err)
	}
}

// TestConnectedByAnotherUser is seen by who serves.
func TestConnectedByAnotherUser(t *testing.T) {
	path := socketOf(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	runAs(t, stranger, path)
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	wantRefused(t, check(t, conn))
	if err := check(t, conn, "65533"); err != nil {
		t.Errorf("a listed user is refused: %v", err)
	}
}

// TestOwnUser needs no list, whichever user it is.
func TestOwnUser(t *testing.T) {
	path := socketOf(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := check(t, dial(t, path)); err != nil {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	if _, err := peeruser.Parse([]string{"root", "65532", "0"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"no-such-user", "", "-1", "4294967295", "1.5"} {
		if _, err := peeruser.Parse([]string{"0", bad}); err == nil || !strings.Contains(err.Error(), `"`+bad+`"`) || !strings.Contains(err.Error(), "give the number") {
			t.Errorf("%q: got %v; want an error that names it", bad, err)
		}
	}
}
