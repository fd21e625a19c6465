// Package nodelock lets one process at a time program a network namespace, whichever dataplane it has.
package nodelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// InUseError reports that another process programs the network namespace. It is [syscall.EBUSY] to [errors.Is].
type InUseError struct {
	// Holder names it.
	Holder string
}

func (e *InUseError) Error() string {
	return "another process programs this network namespace: " + e.Holder + "; stop it first"
}

// Is reports whether target is syscall.EBUSY, by which callers outside of this module know the error.
func (e *InUseError) Is(target error) bool { return target == syscall.EBUSY }

// Options are the settings of [Acquire].
type Options struct {
	// Logger gets that another process is waited for. Required.
	Logger *slog.Logger
	// Program is how this process is called, with its version, for the message to a second one. Default: the name of its executable.
	Program string
	// Wait is how long to wait for the end of another process that has the lock. Default: not at all.
	Wait time.Duration
}

// cleanupWait is enough for a process that has just been stopped.
const cleanupWait = 2 * time.Second

// Cleanup calls remove while this process has the lock of the calling thread's network namespace. If another process has the lock and does not
// end within two seconds, Cleanup removes nothing, and returns an error that names the dataplane.
func Cleanup(ctx context.Context, dataplane string, remove func() (removed bool, err error)) (removed bool, err error) {
	lock, err := Acquire(ctx, Options{Logger: slog.New(slog.DiscardHandler), Wait: cleanupWait})
	if err != nil {
		return false, fmt.Errorf("%s: %w", dataplane, err)
	}
	removed, err = remove()
	return removed, errors.Join(err, lock.Close())
}

// lockTable is held by the process that programs a network namespace. It is a table without rules that belongs to the
// process's socket, vanishes with it however the process ends, and takes CAP_NET_ADMIN to create. So nobody without
// that right can keep the dataplane from starting. Its comment names the process.
var lockTable = nft.Table{Family: nft.IPv4, Name: "switchyard-lock"}

// lockFlags has a second flag, which means nothing for a table without rules. 'nft -j list' of nft 1.0.6 prints freed
// memory for a table with one flag.
const lockFlags = nft.Owned | nft.Dormant

const lockPeriod = 2 * time.Millisecond

const (
	// attempts is how often the kernel may fail, with a pause in between that doubles. A temporary failure, such as
	// missing memory or a concurrent commit, must not end a start.
	attempts   = 6
	firstPause = 10 * time.Millisecond
)

// kernel is what a lock needs of a [nft.Conn].
type kernel interface {
	Table(nft.Table) (nft.TableInfo, error)
	Commit(*nft.Batch) error
	Port() (uint32, error)
}

// lock makes k's socket the one that may program the network namespace. If another one is, it waits for its end.
func lock(ctx context.Context, k kernel, o Options) error {
	expired := time.NewTimer(o.Wait)
	defer expired.Stop()
	again := time.NewTicker(lockPeriod)
	defer again.Stop()
	failures, pause := 0, firstPause
	for waiting := false; ; {
		err := tryLock(k, o.Program)
		inUse, ok := errors.AsType[*InUseError](err)
		if !ok {
			if failures++; err == nil || failures == attempts || isUnsupported(err) || errors.Is(err, syscall.EPERM) {
				return err
			}
			o.Logger.Warn("cannot lock this network namespace, trying again", "pause", pause, "error", err)
			select {
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), err)
			case <-time.After(pause):
			}
			pause *= 2
			continue
		}
		if !waiting && o.Wait > 0 {
			waiting = true
			o.Logger.Info("waiting for the end of the process that programs this network namespace", "process", inUse.Holder, "for", o.Wait)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-expired.C:
			return err
		case <-again.C:
		}
	}
}

// isUnsupported reports whether an error of the kernel is that it has no nf_tables, or none that can keep a table for one process.
func isUnsupported(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPROTONOSUPPORT)
}

func tryLock(k kernel, program string) error {
	info, err := k.Table(lockTable)
	if err == nil && info.Flags&nft.Owned != 0 {
		return OwnedBy(k, info)
	}
	var b nft.Batch
	if err == nil { // a copy that somebody has loaded
		b.DeleteTable(lockTable)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	b.CreateTable(lockTable, lockFlags, holder(program))
	err = k.Commit(&b)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOENT) {
		// Another process was faster. If it is not visible now, it has already ended.
		if info, again := k.Table(lockTable); again == nil && info.Flags&nft.Owned != 0 {
			return OwnedBy(k, info)
		}
	}
	if err != nil {
		return fmt.Errorf("creating table %s: %w", lockTable.Name, err)
	}
	return nil
}

// OwnedBy returns a [InUseError] for an owned table, nil if it belongs to k: an attempt that failed may have been carried out.
func OwnedBy(k kernel, info nft.TableInfo) error {
	port, err := k.Port()
	if err != nil || port == info.Owner {
		return err
	}
	return &InUseError{Holder: holderOf(info)}
}

func holderOf(info nft.TableInfo) string {
	if info.Comment == "" {
		return fmt.Sprintf("the owner of netlink port %d, which is the process ID unless it has several such sockets", info.Owner)
	}
	return info.Comment
}

// holder describes this process to others. The end matters most, and a comment has little room.
func holder(program string) string {
	if program == "" {
		program = filepath.Base(os.Args[0])
	}
	pid := fmt.Sprintf("PID %d", os.Getpid())
	// Linux gives its first PID namespace this number (PROC_PID_INIT_INO).
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != "pid:[4026531836]" {
		pid += " in its container"
	}
	if host, err := os.Hostname(); err == nil {
		pid += " on " + host
	}
	room := max(nft.MaxComment-len(pid)-len(", "), 0)
	return program[:min(len(program), room)] + ", " + pid
}

// Holder describes the process that programs the calling thread's network namespace. It is empty if no process holds the lock. It needs
// CAP_NET_ADMIN.
func Holder() (name string, err error) {
	conn, err := nft.Dial()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	info, err := conn.Table(lockTable)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read table %s: %w", lockTable.Name, err)
	case info.Flags&nft.Owned == 0: // a copy that somebody has loaded
		return "", nil
	}
	return holderOf(info), nil
}
