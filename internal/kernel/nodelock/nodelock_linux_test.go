package nodelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// namespace returns a function that acquires the lock of a new network namespace.
func namespace(t *testing.T) (ns *netns.NS, acquire func(context.Context, Options) (*Lock, error)) {
	t.Helper()
	ns = netnstest.New(t)
	return ns, func(ctx context.Context, o Options) (l *Lock, err error) {
		o.Logger = slog.New(slog.DiscardHandler)
		check(t, ns.Do(func() error { l, err = Acquire(ctx, o); return nil }))
		return l, err
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOneHolder: the second is refused with the name of the first, or waits for its end, or for its own.
func TestOneHolder(t *testing.T) {
	_, acquire := namespace(t)
	first, err := acquire(t.Context(), Options{Program: "first v1"})
	check(t, err)
	_, err = acquire(t.Context(), Options{})
	inUse, ok := errors.AsType[*InUseError](err)
	if !ok || !errors.Is(err, syscall.EBUSY) || !strings.Contains(inUse.Holder, "first v1") || !strings.Contains(inUse.Holder, fmt.Sprintf("PID %d", os.Getpid())) {
		t.Errorf("the second gets %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("given up")
	time.AfterFunc(20*time.Millisecond, func() { cancel(given) })
	if _, err = acquire(ctx, Options{Wait: time.Hour}); !errors.Is(err, given) {
		t.Errorf("after its context has ended: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { first.Close() })
	second, err := acquire(t.Context(), Options{Wait: time.Hour})
	check(t, err)
	_, elsewhere := namespace(t)
	other, err := elsewhere(t.Context(), Options{})
	check(t, err)
	check(t, errors.Join(second.Close(), other.Close()))
}

// TestLockIsLeftBehind is about a table of the lock's name that belongs to nobody, as if somebody had loaded a listing.
func TestLockIsLeftBehind(t *testing.T) {
	ns, acquire := namespace(t)
	var conn *nft.Conn
	check(t, ns.Do(func() (err error) { conn, err = nft.Dial(); return err }))
	defer conn.Close()
	var b nft.Batch
	b.AddTable(lockTable)
	check(t, conn.Commit(&b))
	l, err := acquire(t.Context(), Options{})
	check(t, err)
	defer l.Close()
	if info, err := conn.Table(lockTable); err != nil || info.Flags != lockFlags || info.Comment == "" {
		t.Errorf("the lock is %+v, %v", info, err)
	}
}

// TestHolderFits: however long the program's name is, the process ID is to be read.
func TestHolderFits(t *testing.T) {
	for n := range 200 {
		h := holder(strings.Repeat("x", n))
		if len(h) > nft.MaxComment || !strings.Contains(h, fmt.Sprintf(", PID %d", os.Getpid())) {
			t.Errorf("with a name of %d bytes: %q", n, h)
		}
	}
	if h := holder(""); !strings.HasPrefix(h, "nodelock.test, ") {
		t.Errorf("without a name: %q", h)
	}
}
