//go:build !linux

package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/hostrelay"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is a relay that listens at the addresses of frontends: on this system no other dataplane can bring connections to it. It implements
// [backend.Backend].
type Backend struct {
	relay     *hostrelay.Relay
	addresses *ifaddr.Watcher
}

// New makes a relay. base must be nil. It listens from the first Apply on, with [Options].Listen at once. Addresses of frontends that this machine does
// not have are added to an interface, which is for administrators and takes Windows. The caller must Close the Backend.
func New(base backend.Backend, o Options) (*Backend, error) {
	if base != nil {
		return nil, fmt.Errorf("userspace: a relay above another dataplane: %w on this system", errors.ErrUnsupported)
	}
	own, err := o.host()
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	b := &Backend{}
	if b.addresses, err = ifaddr.Open(ifaddr.Options{Logger: own.Logger}); err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	own.HostAddrs, own.Interface = b.addresses.Addrs, serviceInterface{}
	if b.relay, err = hostrelay.New(own); err != nil {
		return nil, errors.Join(fmt.Errorf("userspace: %w", err), b.addresses.Close())
	}
	return b, nil
}

// host returns the options of the relay.
func (o Options) host() (hostrelay.Options, error) {
	o, err := o.withDefaults()
	own := hostrelay.Options{
		Logger: o.Logger, Policy: balance.Policy(o.Policy), DialTimeout: o.DialTimeout, UDPIdleTimeout: o.UDPIdleTimeout, DialAttempts: o.DialAttempts,
		Ejection: balance.Ejection(o.Ejection), ProxyProtocol: o.ProxyProtocol, ResetRemoved: o.ResetRemoved, MaxConnections: o.MaxConnections,
		MaxUDPFlows: o.MaxUDPFlows, MaxAffinityClients: o.MaxAffinityClients,
	}
	for _, l := range o.Listen {
		k := l.kind()
		key := state.FrontendKey{Family: k.Family, Protocol: k.Protocol, Addr: l.Frontend.Addr(), Port: l.Frontend.Port()}
		if key.Addr.IsUnspecified() {
			key.Addr = netip.Addr{} // a NodePort
		}
		own.Listen = append(own.Listen, hostrelay.Listen{Frontend: key, At: l.At})
	}
	return own, err
}

// Disturbed gets a value when the addresses of this machine have changed.
func (b *Backend) Disturbed() <-chan struct{} { return b.addresses.Changed() }

// Reconfigure replaces the options, except for Logger and Listen. Nothing changes before the next Apply, which must be of a full update.
func (b *Backend) Reconfigure(o Options) error {
	own, err := o.host()
	if err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	b.relay.Reconfigure(own)
	return nil
}

// Apply makes the relay show u. See [backend.Backend].
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	return b.relay.Apply(ctx, u)
}

// Verify compares the relay's listeners with the last applied state. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) { return b.relay.Verify(ctx) }

// Features implements [backend.Featured].
func (b *Backend) Features() state.Features {
	return state.Weights | state.Balances | state.DrainDeadline
}

// Problems returns what the relay cannot do for some services. It may be called at any time.
func (b *Backend) Problems() []error { return b.relay.Problems() }

// Amounts returns how many connections and flows of UDP there are. It may be called at any time.
func (b *Backend) Amounts() (connections, flows Amount) {
	own := b.relay.Amounts()
	return Amount(own[0]), Amount(own[1])
}

// Release has the relay accept no new connections. Neither Apply nor Verify may be called after it.
func (b *Backend) Release(context.Context) error {
	b.relay.Release()
	return nil
}

// drainPeriod is how often Drain counts the remaining connections and flows.
const drainPeriod = 20 * time.Millisecond

// Drain returns when the connections and flows that the relay carries have ended, or with ctx's error when it ends.
func (b *Backend) Drain(ctx context.Context) error {
	for b.Carried() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("userspace: %d connections and flows are still open: %w", b.Carried(), context.Cause(ctx))
		case <-time.After(drainPeriod):
		}
	}
	return nil
}

// Retire does nothing: another dataplane cannot replace the relay while it runs.
func (*Backend) Retire() {}

// Resume does nothing.
func (*Backend) Resume(backend.Backend) {}

// Carried returns how many connections and flows the relay carries. It may be called at any time.
func (b *Backend) Carried() int { return b.relay.Carried() }

// Lingering returns s.
func (*Backend) Lingering(s *state.Service) *state.Service { return s }

// Close ends what the relay carries, and removes the addresses that it has added.
func (b *Backend) Close() error { return errors.Join(b.relay.Close(), b.addresses.Close()) }

// Cleanup removes the addresses of Services that a relay has added, and reports whether there were any.
func Cleanup(context.Context) (bool, error) { return Remove() }

// Remove is Cleanup.
func Remove() (removed bool, err error) {
	added, err := serviceInterface{}.Added()
	for _, addr := range added {
		err = errors.Join(err, serviceInterface{}.Remove(addr))
	}
	if err != nil {
		err = fmt.Errorf("userspace: %w", err)
	}
	return len(added) > 0, err
}

// Programmed reports whether there are addresses that Cleanup would remove.
func Programmed() (bool, error) {
	added, err := serviceInterface{}.Added()
	return len(added) > 0, err
}
