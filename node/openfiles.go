package node

import (
	"log/slog"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/server"
)

// fewFiles is the limit of open files below which there is a warning. It is a common default that was not chosen for a
// server.
const fewFiles = 1024

// shares are how many file descriptors the servers of a process may have. Together they leave enough to the rest of it: connections
// to the API server or a relay, files, netlink and logs. However many connections others make, changes arrive and are programmed.
type shares struct {
	health, healthOwn   int // connections from elsewhere, and from this machine
	metrics, metricsOwn int
	ui                  int // connections to the page from elsewhere, and as many from this machine, out of the files kept for the rest
	ports, portSockets  int // of health check node ports: connections and listeners
	api                 int // connections to the node-local API, at all its addresses, of clients and of those that are not known yet
	serve               int // the same in a process that serves only its health and metrics
	relay               int // connections and flows that are relayed, and pipes for them
}

// relayFrom is the least limit of open files with a share for a relay in any mode. The servers still have their
// maximum. With fewer, only a process that begins in mode userspace divides its descriptors for a relay. After a change
// of the mode, that relay and the servers together may then have more than there are.
const relayFrom = 1 << 18

// sharesOf divides a limit of open files. withRelay is set in a process that relays connections.
func sharesOf(limit uint64, withRelay bool) shares {
	files := int(min(limit, 1<<20))
	kept := min(max(files/4, 64), 1024) // for the rest of the process
	servers := files - kept
	relay := max(servers-max(servers/4, 16), 1) // each server has one at least
	if withRelay {
		servers -= relay
	}
	part := func(sixteenths, most int) int {
		return max(min(servers*sixteenths/16, most), 1)
	}
	return shares{
		relay:  relay,
		health: part(2, 128), healthOwn: part(1, 32),
		metrics: part(1, 64), metricsOwn: part(1, 32),
		ui:    min(kept/8, ui.MaxConnections),
		ports: part(2, 512), portSockets: part(4, 16384),
		api: part(5, 1<<20), serve: part(11, 1<<20),
	}
}

// openShares divides the limit of this process. Go has raised it as far as it goes.
func openShares(mode config.Mode, log *slog.Logger) shares {
	limit := openFilesLimit()
	if limit < fewFiles {
		log.Warn("the limit of open files is low: servers of this process take few connections", "limit", limit,
			"remedy", "raise the hard limit, LimitNOFILE= of a systemd unit or ulimit -n")
	}
	return sharesOf(limit, mode == config.ModeUserspace || limit >= relayFrom)
}

// forServe returns the shares of a process that serves the node-local API, its health and metrics: a relay has a connection of each node.
func (s shares) forServe() shares {
	return shares{health: s.health, healthOwn: s.healthOwn, metrics: s.metrics, metricsOwn: s.metricsOwn, ui: s.ui, api: s.serve, serve: s.serve}
}

// apiClients returns how many connections each of n addresses of the node-local API may have. most is the configured number, 0 for the
// usual one.
func (s shares) apiClients(most, n int, log *slog.Logger) int {
	there := server.ClientsOf(s.api / max(n, 1))
	switch {
	case most == 0:
		return min(server.DefaultMaxClients, there)
	case most > there:
		log.Warn("the limit of open files allows fewer connections to the node-local API", "allows", there, "wanted", most,
			"remedy", "raise the hard limit, LimitNOFILE= of a systemd unit or ulimit -n")
	}
	return min(most, there)
}

// connections counts the connections of a server.
type connections struct{ open, closed atomic.Int64 }

func (c *connections) count() (open, closed int64) { return c.open.Load(), c.closed.Load() }

// pool bounds the connections of a server that answers at once, to most from elsewhere and own from this machine.
func (c *connections) pool(name string, most, own int, log *slog.Logger) *connlimit.Pool {
	return connlimit.New(connlimit.Options{
		Name: name, Max: most, PerClient: max(most/8, 1), ThisMachine: own, Replace: true, Logger: log, Open: &c.open, Closed: &c.closed,
	})
}
