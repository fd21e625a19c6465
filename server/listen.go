package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/client/namedpipe"
)

// Address is where a server listens.
type Address struct {
	// Network is "unix", "npipe" or "tcp".
	Network string
	// Path is the absolute path of the unix socket, or the path of the named pipe.
	Path string
	// TCP is an IP address and port.
	TCP netip.AddrPort
}

// ParseAddress reads an address: "unix:///run/switchyard/api.sock", "tcp://127.0.0.1:12345" or 127.0.0.1:12345 alone, as KEP-2104 writes it,
// or on Windows "npipe:////./pipe/switchyard". The host of a TCP address is an IP address, because a name may come to mean another one.
func ParseAddress(s string) (Address, error) {
	if namedpipe.Is(s) {
		path, err := namedpipe.Path(s)
		return Address{Network: "npipe", Path: path}, err
	}
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if !filepath.IsAbs(filepath.FromSlash(path)) && !strings.HasPrefix(path, "/") { // on Windows, either
			return Address{}, fmt.Errorf("address %q: the path must be absolute, as in unix:///run/switchyard/api.sock", s)
		}
		return Address{Network: "unix", Path: filepath.Clean(path)}, nil
	}
	hostPort, isTCP := strings.CutPrefix(s, "tcp://")
	a, err := netip.ParseAddrPort(hostPort)
	switch {
	case err == nil:
		return Address{Network: "tcp", TCP: a}, nil
	case isTCP:
		return Address{}, fmt.Errorf("address %q: it must be an IP address and a port, as in tcp://127.0.0.1:12345", s)
	}
	return Address{}, fmt.Errorf("address %q: it must begin with unix://, npipe:// or tcp://, or be an IP address and a port", s)
}

// String returns the address as ParseAddress reads it.
func (a Address) String() string {
	switch a.Network {
	case "unix":
		return "unix://" + filepath.ToSlash(a.Path)
	case "npipe":
		return namedpipe.Address(a.Path)
	}
	return "tcp://" + a.TCP.String()
}

// Exposed reports whether the address can be reached from other machines, so that it is served with TLS only.
func (a Address) Exposed() bool { return a.Network == "tcp" && !a.TCP.Addr().Unmap().IsLoopback() }

// Listen listens at an address, which must not be exposed if t is nil. mode is the permissions of a unix socket, 0 for 0600. A named pipe is
// for administrators, the system and the user of this process, on this machine.
func Listen(ctx context.Context, a Address, mode fs.FileMode, t *TLS) (net.Listener, error) {
	switch {
	case a.Network == "unix":
		return ListenUnix(a.Path, mode)
	case a.Network == "npipe":
		l, err := listenPipe(a.Path)
		if err != nil {
			return nil, fmt.Errorf("listen on %v: %w", a, err)
		}
		return l, nil
	case a.Exposed() && t == nil:
		return nil, fmt.Errorf("listen on %v: %w", a, errExposed)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.TCP.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %v: %w", a, err)
	}
	return l, nil
}

var errExposed = errors.New("other machines can reach this address, and there are no certificates; " +
	"choose a loopback address or a unix socket, or configure TLS")

// ListenUnix listens on a unix socket with the permissions mode, 0 for 0600, regardless of the process's umask. The
// socket has them from the moment of its creation. ListenUnix creates its directory, with permissions 0755, if it is
// missing. The path may have 107 bytes.
//
// A socket that a dead process has left is replaced. A served socket, and any file that is not a socket, is an error.
// Closing the listener removes the socket. If several callers begin to listen on one path at the same instant, one
// succeeds, and the others get an error. They use a lock on the file path.lock, which exists only while they begin.
// Windows, Solaris and AIX have no such lock. There, more than one caller may succeed, and only the last one is
// reachable.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	l, err := listenUnix(path, cmp.Or(mode, 0o600))
	if err != nil {
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	return l, nil
}

// maxPath limits the path of a unix socket on Linux, which has 108 bytes for it including the 0 at its end.
const maxPath = 107

func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path has %d bytes, and unix sockets may have %d; choose a shorter one", len(path), maxPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := replaceable(path); err != nil {
		return nil, err
	}
	// It is bound where no other user can reach it, and moved to its place when it is finished.
	private, err := os.MkdirTemp(dir, ".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	temporary := filepath.Join(private, "s")
	l, err := bind(private, "s")
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would unlink where it was bound
	var own fs.FileInfo
	if err = os.Chmod(temporary, mode); err == nil {
		if err = os.Rename(temporary, path); err == nil {
			own, err = os.Lstat(path)
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &unixListener{UnixListener: l, path: path, own: own}, nil
}

// bind listens on a new socket in a directory, whose path may be too long for that.
func bind(dir, name string) (*net.UnixListener, error) {
	path := filepath.Join(dir, name)
	if len(path) > maxPath {
		d, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer func() { _ = d.Close() }()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)
	}
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
}

// replaceable returns why the file at path must not be replaced, nil if it may be.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is something that is not a socket; remove it, or choose another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("another process serves this socket; stop it, or choose another path")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("cannot determine whether this socket is served; remove it if it is not: %w", err)
}

// unixListener removes its socket when it is closed, unless another one has taken its place.
type unixListener struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

// Addr is the path of the socket, not where it was bound first.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.path} }

func (l *unixListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}
