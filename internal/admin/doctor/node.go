package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// Node is what checks look at. A function that is nil is not asked; the finding says so.
type Node struct {
	// Files has /proc and /sys, as "proc/..." and "sys/...".
	Files fs.FS
	// Mode is the dataplane that the proxy is to use.
	Mode string
	// Dataplanes are all that this program has, with why each cannot run here. The first one serves where another cannot.
	Dataplanes []Dataplane
	// EdgeMode is edge.mode of the configuration, empty if the edge is off. EdgeAvailable returns why the edge cannot run here. It is nil for systems without an edge.
	EdgeMode      string
	EdgeAvailable func() error
	// NodePorts are the ports of the cluster's NodePorts, the first and the last.
	NodePorts [2]int
	// Programmed reports whether the kernel holds rules of Switchyard.
	Programmed func() (bool, error)
	// Holder describes the process that programs this network namespace. It is empty if there is none.
	Holder func() (string, error)
	// Services returns cluster IPs, not necessarily all. Route returns an error if this node has no route to an address.
	Services func(context.Context) ([]netip.Addr, error)
	Route    func(netip.Addr) error
	// Endpoints get TCP connections of this node. Connect connects to one and has its own time limit. Without an answer, its error is
	// [context.DeadlineExceeded].
	Endpoints func(context.Context) ([]Endpoint, error)
	Connect   func(context.Context, netip.AddrPort) error
	// Leftovers are the objects that kube-proxy left.
	Leftovers func(context.Context) ([]leftovers.Item, error)
	// BaseChains are the base chains of nf_tables.
	BaseChains func() ([]nft.BaseChain, error)
	// Health is what a running proxy answers at HealthAddress. An error means that none answers there.
	Health        func(context.Context) (Health, error)
	HealthAddress string
	// API asks the API server, Relay a relay or another server of the node-local API.
	API   func(context.Context) (API, error)
	Relay func(context.Context) (Relay, error)

	asked *asked // what API returned
}

// Dataplane is one that this program has.
type Dataplane struct {
	Mode string
	// Available returns why it cannot run here.
	Available func() error
}

// Health is what a running proxy says of itself.
type Health struct {
	Healthy  bool
	Problems []Problem
}

// Problem is a problem that a proxy reports, and the part of the process that has it.
type Problem struct{ Part, Message string }

// API is how the API server answers.
type API struct {
	Server, Version string
	Took            time.Duration
	// Ahead is how far its clock is ahead of this machine's.
	Ahead time.Duration
	// Refused are permissions that are missing.
	Refused []error
	// Node is this Node's name. NodeMissing is set if the API server does not have it.
	Node        string
	NodeMissing bool
}

// Relay is how a relay answers.
type Relay struct {
	Target   string
	Took     time.Duration
	Services int
}

// read returns a file's text without the spaces around it.
func (n *Node) read(path string) (string, error) {
	data, err := fs.ReadFile(n.Files, path)
	return strings.TrimSpace(string(data)), err
}

// sysctl returns a number that the kernel is set to, by its path below /proc/sys.
func (n *Node) sysctl(path string) (int, error) {
	text, err := n.read("proc/sys/" + path)
	if err != nil {
		return 0, fmt.Errorf("sysctl %s: %w", dotted(path), err)
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("sysctl %s: %q is no number", dotted(path), text)
	}
	return value, nil
}

// dotted is how people write the name of a sysctl.
func dotted(path string) string { return strings.ReplaceAll(path, "/", ".") }

// devices are the names of network devices.
func (n *Node) devices() []string {
	entries, err := fs.ReadDir(n.Files, "sys/class/net")
	if err != nil {
		return nil // no sysfs, as in some containers
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
