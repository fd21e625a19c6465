package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/repairs"
)

// intruders finds out which process changes our tables again and again. A change that is repaired may be anybody's mistake; when
// repairs go on, it listens for a while to what the kernel reports of commits.
type intruders struct {
	log     *slog.Logger
	port    uint32 // the netlink port of our own commits
	monitor monitor
	done    sync.WaitGroup

	repairs repairs.History

	mu   sync.Mutex
	stop *time.Timer // ends the listening; nil if nothing is listened to
	last nft.Change  // the last that was not ours
	at   time.Time
}

// monitor has the methods of *nft.Monitor that intruders needs.
type monitor interface {
	Listen(on bool) error
	Next() (nft.Change, error)
	Close() error
}

// listenTime is how long it listens after a repair.
const listenTime = time.Minute

func newIntruders(log *slog.Logger, port uint32, m monitor) *intruders {
	i := &intruders{log: log, port: port, monitor: m}
	i.done.Go(i.follow)
	return i
}

func (i *intruders) follow() {
	for {
		change, err := i.monitor.Next()
		if err != nil {
			return
		}
		if change.Port != i.port {
			i.note(change)
		}
	}
}

func (i *intruders) note(change nft.Change) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.at) > repairs.Window {
		i.log.Warn("another process changes the tables", "process", change.Process, "pid", change.PID,
			"remedy", "keep it from tables "+ruleset.TableName+", for example from 'nft flush ruleset'")
	}
	i.last, i.at = change, time.Now()
}

// repaired takes down that tables had to be repaired. One repair before they are a fault, it is found out who makes them necessary.
func (i *intruders) repaired() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.repairs.Note() < repairs.Threshold-1 {
		return
	}
	if i.stop != nil {
		i.stop.Reset(listenTime)
		return
	}
	if err := i.monitor.Listen(true); err != nil {
		i.log.Warn("cannot find out which process changes the tables", "error", err)
		return
	}
	i.stop = time.AfterFunc(listenTime, i.rest)
}

// rest ends the listening.
func (i *intruders) rest() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stop = nil
	_ = i.monitor.Listen(false) // fails only if it is closed
}

// fault returns an error if another program changes the tables repeatedly. It names the program if it is known.
func (i *intruders) fault() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	who := errors.New("find the process that changes them, for example with 'nft monitor', and stop it")
	if !i.at.IsZero() && time.Since(i.at) <= repairs.Window {
		who = fmt.Errorf("process %q changes them, with PID %d in the node's first PID namespace; stop it, or keep it from these tables",
			i.last.Process, i.last.PID)
	}
	return i.repairs.Fault("tables "+ruleset.TableName, who)
}

func (i *intruders) close() error {
	i.mu.Lock()
	if i.stop != nil {
		i.stop.Stop()
	}
	i.mu.Unlock()
	err := i.monitor.Close()
	i.done.Wait()
	return err
}
