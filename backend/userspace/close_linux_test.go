package userspace_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// watchedBase calls functions before it is changed, or the relay's own tables are.
type watchedBase struct {
	*nftables.Backend
	onCommit, onApply func()
}

func (b *watchedBase) Commit(fn func() error) error {
	if b.onCommit != nil {
		b.onCommit()
	}
	return b.Backend.Commit(fn)
}

func (b *watchedBase) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	if b.onApply != nil {
		b.onApply()
	}
	return b.Backend.Apply(ctx, u)
}

// startWatched starts a pair whose base is watched.
func (l *lab) startWatched() (base *watchedBase) {
	l.t.Helper()
	if err := l.Node().Do(func() error {
		b, err := nftables.New(l.t.Context(), nftables.Options{})
		if err != nil {
			return err
		}
		base = &watchedBase{Backend: b}
		relay, err := userspace.New(base, l.options)
		if err != nil {
			return errors.Join(err, b.Close())
		}
		l.pair = &pair{relay, b}
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	return base
}

// bindPorts binds the ports of the relay for datagrams.
func bindPorts() error {
	for _, port := range []string{"61871", "61872"} {
		c, err := net.ListenPacket("udp4", net.JoinHostPort(userspace.DefaultAddresses()[0].String(), port))
		if err != nil {
			return err
		}
		c.Close()
	}
	return nil
}

// A relay that closes still has its ports when nothing leads to them.
func TestPortsOutliveOverlay(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.kill()
	base := l.startWatched()
	l.apply(nil, l.at(answers))
	commits := 0
	base.onCommit = func() {
		commits++
		if err := l.withoutRights(bindPorts); err == nil {
			t.Error("a stranger has the ports of the relay while packets are still led to them")
		}
	}
	l.kill()
	if commits == 0 {
		t.Error("the tables of the relay were not removed")
	}
}

// A process that has ended, as the next one sees it, has no port of the relay.
func TestPortsAreFreeForNext(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	if err := l.pair.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	bound, waiting := make(chan error, 1), make(chan bool)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		bound <- l.Node().Do(func() error {
			conn, err := nft.Dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			leaves := nft.Table{Family: nft.IPv4, Name: "switchyard-leaves"}
			if _, err := conn.Table(leaves); err != nil {
				return err
			}
			close(waiting)
			for {
				if _, err := conn.Table(leaves); err != nil {
					return bindPorts()
				}
			}
		})
	}()
	select {
	case <-waiting:
	case err := <-bound:
		t.Fatal(err)
	}
	l.kill()
	if err := <-bound; err != nil {
		t.Errorf("the next process does not get the ports of the relay: %v", err)
	}
}

// Rules of an earlier process that lead to other ports than the next process has are not used.
func TestRulesOfOtherPorts(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.kill()
	var held []net.PacketConn
	if err := l.Node().Do(func() error { // the ports of datagrams; ports of connections would do as well
		for _, port := range []string{"61871", "61872"} {
			c, err := net.ListenPacket("udp4", net.JoinHostPort(userspace.DefaultAddresses()[0].String(), port))
			if err != nil {
				return err
			}
			held = append(held, c)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.start()
	l.apply(nil, l.at(answers))
	l.mustAnswer(state.UDP)
	if err := errors.Join(l.pair.Problems()...); err == nil || !strings.Contains(err.Error(), "port 61871 of UDP") {
		t.Errorf("that a port is taken is reported as %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	if _, err := l.pair.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if problems := l.pair.Problems(); len(problems) > 0 {
		t.Errorf("reported once the ports are free: %v", problems)
	}
	l.kill()
	base := l.startWatched()
	base.onApply = func() { l.mustAnswer(state.UDP) }
	l.apply(nil, l.at(answers))
	l.mustAnswer(state.UDP)
}
