//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Limit names something that a dataplane cannot do, with a documented difference in its place. A dataplane that claims one which does not show
// fails the suite, as does one that shows one which it does not claim.
type Limit string

// The limits.
const (
	// HairpinSourceKept: a pod which reaches itself over TCP through a Service may see its own address instead of the node's. A dataplane that
	// translates connections at their sockets does not know a client's address in time.
	HairpinSourceKept Limit = "HairpinSourceKept"
	// ClientSourceLost: servers of TCP and UDP see an address of the node where they should see the client's. A dataplane that relays connects to
	// them itself.
	ClientSourceLost Limit = "ClientSourceLost"
	// EndpointRefusalLost: where an endpoint refuses, a client of TCP is connected and then reset, and one of UDP
	// gets no answer. A dataplane that relays has accepted the connection before it asks an endpoint. The dataplane's
	// own refusals still apply.
	EndpointRefusalLost Limit = "EndpointRefusalLost"
	// TCPOnly: the UDP and SCTP ports of Services do not answer. A dataplane that relays HTTP or TCP supports no other
	// protocols. It reports each Service that has such ports as failed, but still serves the TCP ports of the Service.
	TCPOnly Limit = "TCPOnly"
)

// Limits are all of them.
func Limits() []Limit {
	return []Limit{HairpinSourceKept, ClientSourceLost, EndpointRefusalLost, TCPOnly}
}

// claims are the limits that a dataplane claims, with whether they show.
type claims struct {
	mu sync.Mutex
	// chances is how often each could have shown, and shown is how often it has.
	chances, shown map[Limit]int
}

// tracked returns d with claims that are checked at the end of t. Claims that packets of this test have not been able to show are not.
func (d Dataplane) tracked(t *testing.T) Dataplane {
	d = d.withClaims()
	t.Cleanup(func() {
		for _, message := range d.unshown() {
			t.Error(message)
		}
	})
	return d
}

func (d Dataplane) withClaims() Dataplane {
	d.claims = &claims{chances: map[Limit]int{}, shown: map[Limit]int{}}
	return d
}

// unshown returns a message for each limit that could have shown and has not.
func (d *Dataplane) unshown() (messages []string) {
	c := d.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, limit := range d.Limits {
		if c.chances[limit] > 0 && c.shown[limit] == 0 {
			messages = append(messages, fmt.Sprintf("dataplane %s claims the limit %s, which has not shown in %d connections: do not claim it",
				d.Name, limit, c.chances[limit]))
		}
	}
	return messages
}

// allows reports whether a limit is claimed and shows in this connection, which could have shown it.
func (d *Dataplane) allows(limit Limit, shows bool) bool {
	if !slices.Contains(d.Limits, limit) {
		return false
	}
	if c := d.claims; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.chances[limit]++
		if shows {
			c.shown[limit]++
		}
	}
	return shows
}

// losesSource reports whether the server of a connection from client has to see an address of the node though it should see the client's.
// Connections of the node show nothing.
func (d *Dataplane) losesSource(proto state.Protocol, client []netip.Addr, node []netip.Addr) bool {
	return slices.Contains(d.Limits, ClientSourceLost) && proto != state.SCTP && !slices.ContainsFunc(client, func(a netip.Addr) bool {
		return slices.Contains(node, a)
	})
}

// isTCPOnly reports whether the dataplane serves no other protocols, by its claim.
func (d *Dataplane) isTCPOnly() bool { return slices.Contains(d.Limits, TCPOnly) }

// lacks reports whether the dataplane claims not to serve what goes to dst: it is an address of a Service, or a NodePort.
func (c *cluster) lacks(proto state.Protocol, dst netip.AddrPort) bool {
	if proto == state.TCP || !c.dataplane.isTCPOnly() {
		return false
	}
	if slices.ContainsFunc(c.lab.Options().ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(dst.Addr()) }) {
		return true
	}
	for s := range c.store.Snapshot().Services() {
		for _, f := range s.Frontends() {
			isNodePort := f.Kind == state.NodePort && f.Port == dst.Port() && (dst.Addr().IsLoopback() || slices.Contains(c.lab.Node().Addrs, dst.Addr()))
			if isNodePort || f.Addr == dst.Addr() {
				return true
			}
		}
	}
	return false
}

// checkLacking checks that there is no answer where the dataplane serves nothing. wanted is set if there would
// otherwise be one.
func (c *cluster) checkLacking(wanted bool, got topology.Answer) error {
	if got.Outcome == topology.Answered {
		return fmt.Errorf("answered by %s in spite of the limit %s: do not claim it", got.Server, TCPOnly)
	}
	if wanted {
		c.dataplane.allows(TCPOnly, true)
	}
	return nil
}

// lacksPort reports whether a Service has a port that the dataplane claims not to serve.
func (c *cluster) lacksPort(name state.ServiceName) bool {
	s := c.store.Snapshot().Get(name)
	return s != nil && c.dataplane.isTCPOnly() && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol != state.TCP })
}

// noSCTP returns a note that SCTP is not checked. It is empty if SCTP is checked, or the dataplane serves TCP only.
func (d *Dataplane) noSCTP() string {
	if d.isTCPOnly() || topology.HasSCTP() {
		return ""
	}
	return fmt.Sprintf("NOT CHECKED: this kernel has no SCTP sockets (modprobe sctp), so that the story sctp is skipped and no history has SCTP. "+
		"That dataplane %s serves SCTP is not shown.", d.Name)
}
