package userspace_test

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/test/await"
)

// dropCapabilities takes all capabilities from the calling thread, which is still of user 0, and must end with the caller's goroutine.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// withoutRights runs fn on the node as user 0 without capabilities, as a container of the host's network may have it.
func (l *lab) withoutRights(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- l.Node().Do(func() error { return errors.Join(dropCapabilities(), fn()) })
	}()
	return <-done
}

// unixNames are the abstract names of unix sockets on the node that tell of this program.
func unixNames() (names []string, err error) {
	list, err := os.ReadFile("/proc/thread-self/net/unix")
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[len(fields)-1], "@switchyard") {
			names = append(names, fields[len(fields)-1])
		}
	}
	return names, err
}

// A process of user 0 without capabilities cannot take over, cannot have something taken over from it, and cannot keep the next process from taking over.
func TestHandoverToStrangers(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	c := l.dial(frontend)
	talk := l.talk(c)
	talk()
	var taken net.Listener
	var strangers []int
	defer func() {
		for _, fd := range strangers {
			unix.Close(fd)
		}
	}()
	if err := l.withoutRights(func() (err error) { // the name that everybody knows
		taken, err = net.Listen("unix", "@switchyard-userspace")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	go func() {
		for {
			if c, err := taken.Accept(); err == nil {
				defer c.Close()
			} else {
				return
			}
		}
	}()
	old := l.pair
	if err := errors.Join(old.Release(t.Context()), old.base.Close()); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- old.Drain(t.Context()) }()
	if err := l.withoutRights(func() error {
		if conn, err := userspace.MeetPredecessor(); conn != nil {
			t.Errorf("a stranger takes over: %v", err)
		}
		names, err := unixNames()
		if len(names) < 2 {
			t.Errorf("sockets: %v", names)
		}
		for _, name := range names {
			for _, typ := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
				fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				strangers = append(strangers, fd)
				_ = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
				for unix.Sendmsg(fd, []byte{0}, unix.UnixRights(0), nil, 0) == nil { // until its queue is full
				}
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	l.start()
	if err := await.Receive(t, "the earlier process has no connections left", drained); err != nil {
		t.Error(err)
	}
	old.Backend.Close()
	talk()
	if n := l.pair.Carried(); n != 1 {
		t.Errorf("the next process carries %d connections, want 1", n)
	}
	for _, fd := range strangers {
		rights := make([]byte, 1000)
		if _, n, _, _, _ := unix.Recvmsg(fd, make([]byte, 1000), rights, 0); n > 0 {
			t.Error("a stranger has got file descriptors")
		}
	}
}
