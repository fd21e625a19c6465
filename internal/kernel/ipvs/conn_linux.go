package ipvs

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// version is the version of the netlink family.
const version = 1

// Conn is a socket to the IPVS of the network namespace in which it was opened. It may be used from any thread, but by one goroutine at a
// time.
type Conn struct {
	family uint16
	socket *nl.SocketHandle
}

// ErrNoIPVS reports that the kernel has no IPVS.
var ErrNoIPVS = errors.New("this kernel has no IPVS: module ip_vs is not there, or may not be loaded")

// Dial opens a socket in the calling thread's network namespace. The kernel loads its module ip_vs for that. It needs CAP_NET_ADMIN. The error
// wraps [ErrNoIPVS] if there is no IPVS.
func Dial() (*Conn, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, os.ErrNotExist) {
		return nil, ErrNoIPVS
	}
	if err != nil {
		return nil, fmt.Errorf("looking for IPVS: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("opening a socket to IPVS: %w", err)
	}
	return &Conn{family.ID, &nl.SocketHandle{Socket: s}}, nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.socket.Close()
	return nil
}

// request sends a command, and returns what the kernel answers.
func (c *Conn) request(cmd uint8, flags int, attrs ...[]byte) ([][]byte, error) {
	r := nl.NewNetlinkRequest(int(c.family), flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: c.socket}
	r.AddData(&nl.Genlmsg{Command: cmd, Version: version})
	for _, a := range attrs {
		r.AddRawData(a)
	}
	msgs, err := r.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for i, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			return nil, errTruncated
		}
		msgs[i] = m[nl.SizeofGenlmsg:]
	}
	return msgs, nil
}

// do sends a command that is answered by an error number only.
func (c *Conn) do(cmd uint8, attrs ...[]byte) error {
	_, err := c.request(cmd, unix.NLM_F_ACK, attrs...)
	return err
}

// Servers returns all virtual servers.
func (c *Conn) Servers() ([]Server, error) {
	msgs, err := c.request(cmdGetService, unix.NLM_F_DUMP)
	if err != nil {
		return nil, fmt.Errorf("listing virtual servers: %w", err)
	}
	servers := make([]Server, len(msgs))
	for i, m := range msgs {
		if servers[i], err = decodeServer(m); err != nil {
			return nil, fmt.Errorf("listing virtual servers: %w", err)
		}
	}
	return servers, nil
}

// Dests returns the real servers of a virtual server. A virtual server that is not there has none.
func (c *Conn) Dests(s *Server) ([]Dest, error) {
	msgs, err := c.request(cmdGetDest, unix.NLM_F_DUMP, s.encode(false))
	if err != nil {
		return nil, fmt.Errorf("listing the real servers of %v: %w", s, err)
	}
	dests := make([]Dest, len(msgs))
	for i, m := range msgs {
		if dests[i], err = decodeDest(s.Addr.Addr().Is6(), m); err != nil {
			return nil, fmt.Errorf("listing the real servers of %v: %w", s, err)
		}
	}
	return dests, nil
}

// AddServer adds a virtual server. The error wraps ENOENT if the kernel does not have its scheduler, and EEXIST if the server is there.
func (c *Conn) AddServer(s *Server) error { return c.do(cmdNewService, s.encode(true)) }

// SetServer changes a virtual server that is there. It keeps its real servers and connections.
func (c *Conn) SetServer(s *Server) error { return c.do(cmdSetService, s.encode(true)) }

// DeleteServer deletes a virtual server with its real servers. Connections end with them. That it is gone already is no error.
func (c *Conn) DeleteServer(s *Server) error { return gone(c.do(cmdDelService, s.encode(false))) }

// gone takes that something is not there for success.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// AddDests adds real servers to a virtual one. It returns the servers that the kernel refuses, by their index, with
// an error that wraps EEXIST if the server is there. It asks once for many: to ask takes longer than to add. If it
// cannot ask, all of them count as refused.
func (c *Conn) AddDests(s *Server, dests []Dest) (refused map[int]error) {
	refused = map[int]error{}
	for first := 0; first < len(dests); first += destsAtOnce {
		some := dests[first:min(first+destsAtOnce, len(dests))]
		if err := c.addDests(s, some, func(i int, errno error) { refused[first+i] = errno }); err != nil {
			for i := range dests[first:] {
				refused[first+i] = err
			}
			break
		}
	}
	return refused
}

// destsAtOnce is how many requests are sent at once. Each is smaller than 200 bytes, and the least that a socket takes is some ten thousand.
const destsAtOnce = 32

func (c *Conn) addDests(s *Server, dests []Dest, refused func(i int, errno error)) error {
	var all []byte
	indices := make(map[uint32]int, len(dests))
	for i := range dests {
		flags := 0 // a refusal is answered in any case
		if i == len(dests)-1 {
			flags = unix.NLM_F_ACK
		}
		r := nl.NewNetlinkRequest(int(c.family), flags)
		r.AddData(&nl.Genlmsg{Command: cmdNewDest, Version: version})
		r.AddRawData(s.encode(false))
		r.AddRawData(dests[i].encode(true))
		indices[r.Seq] = i
		all = append(all, r.Serialize()...)
	}
	if err := unix.Sendto(c.socket.Socket.GetFd(), all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		msgs, _, err := c.socket.Socket.Receive()
		if err != nil {
			return fmt.Errorf("an answer of IPVS: %w", err)
		}
		for _, m := range msgs {
			i, ok := indices[m.Header.Seq]
			if !ok || m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if errno := -int32(native.Uint32(m.Data)); errno != 0 {
				refused(i, unix.Errno(errno))
			}
			if i == len(dests)-1 {
				return nil
			}
		}
	}
}

// SetDest changes a real server that is there.
func (c *Conn) SetDest(s *Server, d *Dest) error {
	return c.do(cmdSetDest, s.encode(false), d.encode(true))
}

// DeleteDest deletes a real server of a virtual one. Its connections end. That it is gone already is no error.
func (c *Conn) DeleteDest(s *Server, d *Dest) error {
	return gone(c.do(cmdDelDest, s.encode(false), d.encode(false)))
}

// Timeouts returns how long the kernel keeps connections without a packet.
func (c *Conn) Timeouts() (Timeouts, error) {
	msgs, err := c.request(cmdGetConfig, unix.NLM_F_ACK)
	if err == nil && len(msgs) == 0 {
		err = errTruncated
	}
	var t Timeouts
	if err == nil {
		t, err = decodeTimeouts(msgs[0])
	}
	if err != nil {
		return t, fmt.Errorf("reading the timeouts of IPVS: %w", err)
	}
	return t, nil
}

// SetTimeouts changes the timeouts that are set.
func (c *Conn) SetTimeouts(t Timeouts) error {
	b := t.encode()
	if len(b) == 0 {
		return nil
	}
	if err := c.do(cmdSetConfig, b); err != nil {
		return fmt.Errorf("setting the timeouts of IPVS: %w", err)
	}
	return nil
}
