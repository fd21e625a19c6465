package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
)

// userspaceDataplane is a relay above the nftables dataplane, in terms of the configuration.
type userspaceDataplane struct {
	*userspace.Backend
	options DataplaneOptions
}

func openUserspace(_ context.Context, c *config.Config, o DataplaneOptions, base *nftablesDataplane) (Dataplane, error) {
	d := &userspaceDataplane{options: o}
	if err := checkBits(c); err != nil {
		return nil, err
	}
	var err error
	if d.Backend, err = userspace.New(aboveBase(base), relayOptions(c, o)); err != nil {
		return nil, err
	}
	return d, nil
}

// checkBits reports an error if the bits by which the relay and the nftables dataplane mark packets are the same.
func checkBits(c *config.Config) error {
	if 1<<c.MasqueradeBit() == backend.RelayMark {
		return fmt.Errorf("masqueradeBit is %d, which mode userspace needs itself: choose another one", c.MasqueradeBit())
	}
	return nil
}

// relayOptions returns the options of the relay.
func relayOptions(c *config.Config, o DataplaneOptions) userspace.Options {
	u := &c.Userspace
	options := userspace.Options{
		Logger: o.Logger, Policy: userspace.Policy(u.Policy), DialTimeout: u.DialTimeout.Duration, DialAttempts: int(u.DialAttempts),
		Ejection:      userspace.Ejection{Failures: int(u.EjectAfterFailures), Time: u.EjectionTime.Duration},
		ProxyProtocol: u.ProxyProtocol, UDPIdleTimeout: u.UDPIdleTimeout.Duration,
		MaxConnections: int(u.MaxConnections), MaxUDPFlows: int(u.MaxUDPFlows), MaxAffinityClients: int(u.MaxAffinityClients),
		ResetRemoved: nftablesOptions(c, o).ResetRemoved, Files: o.relayFiles, Memory: o.memory,
	}
	for _, text := range u.Listen {
		if l, err := config.ParseListen(text); err == nil { // c is valid
			options.Listen = append(options.Listen, userspace.Listen(l))
		}
	}
	return options
}

// Reconfigure implements [Dataplane].
func (d *userspaceDataplane) Reconfigure(c *config.Config) error {
	if err := checkBits(c); err != nil {
		return err
	}
	return d.Backend.Reconfigure(relayOptions(c, d.options))
}

// drain waits until open connections have ended or moved to another process, and closes the relay.
func (d *userspaceDataplane) drain(ctx context.Context) error {
	if err := d.Drain(ctx); err != nil {
		d.options.Logger.Warn("what is still open ends with this process", "error", err)
	}
	return d.Backend.Close()
}

// relayed is what the relay carries, for the metrics. It is nil without one.
func (n *Node) relayed() map[string]metrics.Relayed {
	relay, ok := n.inUse().(relaying)
	if !ok {
		return nil
	}
	connections, flows := relay.Amounts()
	return map[string]metrics.Relayed{"TCP": metrics.Relayed(connections), "UDP": metrics.Relayed(flows)}
}

// standaloneRelay is a relay that listens on addresses of the host. It programs nothing, and needs no rights.
type standaloneRelay struct {
	userspaceDataplane
	drainTimeout time.Duration
}

// isStandalone reports whether c wants such a relay on an operating system, named as in runtime.GOOS. Without nftables, there is no other one.
func isStandalone(c *config.Config, goos string) bool {
	return c.Mode == config.ModeUserspace && (len(c.Userspace.Listen) > 0 || goos != "linux")
}

// errStandalone is why the dataplane stays as it is.
var errStandalone = errors.New("mode: a relay that listens on addresses of the host (userspace.listen, and always on Windows) cannot replace another " +
	"dataplane, or be replaced, while the process runs: restart it")

func openStandaloneRelay(_ context.Context, c *config.Config, o DataplaneOptions, _ *nftablesDataplane) (Dataplane, error) {
	d := &standaloneRelay{userspaceDataplane{options: o}, c.Userspace.DrainTimeout.Duration}
	var err error
	if d.Backend, err = userspace.New(nil, relayOptions(c, o)); err != nil {
		return nil, err
	}
	return d, nil
}

// Reconfigure implements [Dataplane].
func (d *standaloneRelay) Reconfigure(c *config.Config) error {
	if !isStandalone(c, runtime.GOOS) {
		return errStandalone
	}
	if err := d.userspaceDataplane.Reconfigure(c); err != nil {
		return err
	}
	d.drainTimeout = c.Userspace.DrainTimeout.Duration
	return nil
}

// Close implements [Dataplane]. Open connections end here or go over to another process.
func (d *standaloneRelay) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.drainTimeout)
	defer cancel()
	return errors.Join(d.Release(ctx), d.drain(ctx))
}
