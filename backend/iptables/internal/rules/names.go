package rules

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// Prefix begins the names of all our chains and sets. Nothing else is ever changed, but for the jumps from the built-in chains.
const Prefix = "SWY-"

// Table is a table of iptables.
type Table string

// The tables that we use. Raw is used by IPv4 only, and only where NodePorts are served on loopback addresses.
const (
	NAT    Table = "nat"
	Filter Table = "filter"
	Raw    Table = "raw"
)

// The chains that are always there.
const (
	chainServices      = Prefix + "SERVICES"
	chainPostrouting   = Prefix + "POSTROUTING"
	chainMasquerade    = Prefix + "MASQUERADE"
	chainMark          = Prefix + "MARK"
	chainMarkUnlessPod = Prefix + "MARK-UNLESS-POD"
	chainMarkNode      = Prefix + "MARK-NODE"

	chainFilter        = Prefix + "FILTER"
	chainReject        = Prefix + "REJECT"
	chainGuard         = Prefix + "GUARD"
	chainGuardNodePort = Prefix + "GUARD-NODE-PORT"
	chainInvalid       = Prefix + "INVALID"

	chainLoopback = Prefix + "LOOPBACK"

	chainPing       = Prefix + "PING" // if an address answers echo requests
	chainPingInside = Prefix + "PING-INSIDE"
)

// The roots of the trees of frontends. The chains further down have the bits that they are about as a suffix.
const (
	rootAddresses       = Prefix + "A"
	rootNodePorts       = Prefix + "N"
	rootRejectAddresses = Prefix + "RA"
	rootRejectNodePorts = Prefix + "RN"
)

// An endpoint with affinity has a chain and a set of clients whose names begin so, and have the same hash.
const (
	endpointPrefix = Prefix + "E-"
	clientsPrefix  = "C-"
)

// hash returns a name for the parts that identify a chain or a set. It has 80 bits, so that nobody can construct two Services with the same
// name.
func hash(parts ...any) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%v\x00", p)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:10])
}

// portID distinguishes a port of a Service in one family.
func portID(name state.ServiceName, p *state.Port) string {
	return hash(name.Namespace, name.Name, p.Name, uint8(p.Protocol), uint8(p.Family))
}

// SetPrefix begins the names of all our sets of a family.
func SetPrefix(f state.Family) string { return fmt.Sprintf("%s%d-", Prefix, uint8(f)) }

func setName(f state.Family, name string) string { return SetPrefix(f) + name }

// IsOurs reports whether a chain or set is ours, by its name.
func IsOurs(name string) bool { return strings.HasPrefix(name, Prefix) }
