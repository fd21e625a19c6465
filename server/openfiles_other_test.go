//go:build !unix

package server_test

import "testing"

// openFiles returns how many files this process may open: there is no limit that a test would reach.
func openFiles(*testing.T) uint64 { return 1 << 20 }
