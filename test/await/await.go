// Package await lets tests wait for what the kernel, another process or another goroutine brings about without telling them. Such
// tests are sensitive to load, so all of them share one long patience. It ends tests that fail, and is never what a test measures.
// Code that only waits for its own timers is tested with testing/synctest.
package await

import (
	"testing"
	"time"
)

// Patience is the time after which something counts as a fault. Only a fault takes so long, also on a busy machine.
const Patience = 3 * time.Minute

// pause is the time between two looks.
const pause = 5 * time.Millisecond

// Until returns when a condition holds. It fails the test after [Patience], and then logs what last returns.
func Until(t testing.TB, what string, holds func() bool, last ...func() any) {
	t.Helper()
	for end := time.Now().Add(Patience); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			fail(t, what, last)
		}
	}
}

// Receive returns what comes from a channel, or the zero value when the channel is closed. It fails the test as [Until] does.
func Receive[T any](t testing.TB, what string, from <-chan T, last ...func() any) (received T) {
	t.Helper()
	select {
	case received = <-from:
	case <-time.After(Patience):
		fail(t, what, last)
	}
	return received
}

func fail(t testing.TB, what string, last []func() any) {
	t.Helper()
	for _, l := range last {
		t.Log(l())
	}
	t.Fatalf("not after %v: %s", Patience, what)
}
