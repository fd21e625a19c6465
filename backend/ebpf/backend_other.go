//go:build !linux

package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// errUnsupported is what sockets cannot be hooked for.
var errUnsupported = fmt.Errorf("ebpf: %w on %s: Linux is needed", errors.ErrUnsupported, runtime.GOOS)

// Backend is socket hooks above another dataplane, on Linux.
type Backend struct{ backend.Backend }

// New fails: hooks need Linux.
func New(backend.Backend, Options) (*Backend, error) { return nil, errUnsupported }

// Available fails: hooks need Linux.
func Available(Options) error { return errUnsupported }

// Close does nothing.
func (*Backend) Close() error { return nil }

// Reconfigure does nothing.
func (*Backend) Reconfigure(Options) {}

// Gone does nothing.
func (*Backend) Gone([]netip.AddrPort) {}

// HookCounts fails: hooks need Linux.
func (*Backend) HookCounts([]state.FrontendKey) ([]backend.Counts, error) { return nil, errUnsupported }

// Counts fails: hooks need Linux.
func (*Backend) Counts([]state.FrontendKey) ([]backend.Counts, error) { return nil, errUnsupported }

// Status returns that the hooks are off.
func (*Backend) Status() Status { return Status{Reason: errUnsupported} }

// Namespaces are the network namespaces of one node, on Linux.
type Namespaces struct{}

// NewNamespaces fails: network namespaces need Linux.
func NewNamespaces() (*Namespaces, error) { return nil, errUnsupported }

// OpenNamespaces fails: network namespaces need Linux.
func OpenNamespaces(string) (*Namespaces, error) { return nil, errUnsupported }

// Pin fails.
func (*Namespaces) Pin(string) error { return errUnsupported }

// AddNode fails.
func (*Namespaces) AddNode(uint64) error { return errUnsupported }

// AddPod fails.
func (*Namespaces) AddPod(uint64) error { return errUnsupported }

// Close does nothing.
func (*Namespaces) Close() error { return nil }

// NamespaceCookie fails: network namespaces need Linux.
func NamespaceCookie() (uint64, error) { return 0, errUnsupported }
