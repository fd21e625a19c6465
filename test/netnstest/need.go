// Package netnstest gives tests network namespaces. With -short it skips the tests that ask for one, so that the others run on a
// machine that allows none. Only [Need] exists on systems other than Linux.
package netnstest

import "testing"

// Need skips a test with -short. It is for tests that make their network namespaces by other means than [New] and [Lab].
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs network namespaces: run it without -short")
	}
}
