// Package peeruser decides by user which processes may be at the other end of a unix socket.
//
// The permissions of a socket decide who may connect to it, but not who serves it. Any process that can create the file
// may serve it. Therefore this package checks the user that the kernel reports for the other process (SO_PEERCRED, see
// unix(7)). The kernel records the user when the process connects or begins to listen.
package peeruser

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
)

// Error is the error of a connection with a process of a user who is not allowed.
type Error struct {
	// User is the number of that user.
	User int
}

// Error implements [error].
func (e *Error) Error() string {
	return fmt.Sprintf("the process at the other end of the socket runs as user %d, who is neither listed nor root nor this "+
		"process's user %d", e.User, os.Geteuid())
}

// Users are users whose processes may be at the other end, in addition to root and the user of this process. The zero
// value has no further users.
type Users struct{ numbers []int }

// Parse reads users that are given by name or by number, such as "switchyard" or "65532". Names are looked up once, here. A user
// outside of the process's user namespace appears as 65534: to list that number lists all of them. Where the system does not report
// users, which is everywhere but on Linux, Parse fails with [errors.ErrUnsupported] if there are any.
func Parse(users []string) (Users, error) {
	var u Users
	for _, name := range users {
		if !supported {
			return u, fmt.Errorf("user %q: who is at the other end of a unix socket: %w on %s; list nobody", name, errors.ErrUnsupported, runtime.GOOS)
		}
		number, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			found, err := user.Lookup(name)
			if err == nil {
				number, err = strconv.ParseUint(found.Uid, 10, 31)
			}
			if err != nil {
				return u, fmt.Errorf("user %q: %w; name a user of this host, or give the number", name, err)
			}
		}
		u.numbers = append(u.numbers, int(number))
	}
	return u, nil
}

// Other returns the number of the user at the other end of a unix socket. It returns false for root and for the user of
// this process. It also returns false where the system does not report users, and for connections of other kinds. A
// connection that wraps another one needs a method NetConn() net.Conn that returns it.
func Other(conn net.Conn) (number int, ok bool) {
	socket, ok := unwrap(conn).(*net.UnixConn)
	if !ok || !supported {
		return 0, false
	}
	number, err := userOf(socket)
	if err != nil || number == 0 || number == os.Geteuid() {
		return 0, false
	}
	return number, true
}

func unwrap(conn net.Conn) net.Conn {
	for {
		wrapped, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = wrapped.NetConn()
	}
}

// Check returns an [*Error] if the process at the other end of a unix socket belongs to a foreign user. Root, this
// process's user and the users of u are not foreign. Root could change this process in any case, and processes of one
// user trust each other. Check checks nothing where the system does not report users, and for connections other than
// unix sockets. A connection that wraps another one needs a method NetConn() net.Conn that returns it.
func (u Users) Check(conn net.Conn) error {
	if !supported {
		return nil
	}
	conn = unwrap(conn)
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		if a, ok := conn.LocalAddr().(*net.UnixAddr); ok && a != nil {
			return fmt.Errorf("user at the other end of the socket: a connection of type %T does not expose it; it needs a method NetConn", conn)
		}
		return nil
	}
	number, err := userOf(socket)
	if err != nil {
		return fmt.Errorf("user at the other end of the socket: %w", err)
	}
	if number == 0 || number == os.Geteuid() || slices.Contains(u.numbers, number) {
		return nil
	}
	return &Error{User: number}
}
