//go:build !linux

package ifaddr

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
)

// TestWatcher: the machine's addresses are known at once, and a change is reported once.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		now := w.Addrs()
		if !slices.Contains(now, netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("the addresses are %v", now)
		}
		gone := netip.MustParseAddr("192.0.2.1")
		w.set(append(slices.Clone(now), gone))
		<-w.Changed()
		<-w.Changed() // the next look finds that it is gone
		if slices.Contains(w.Addrs(), gone) {
			t.Errorf("the addresses are %v", w.Addrs())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("closing twice: %v", err)
		}
	})
}
