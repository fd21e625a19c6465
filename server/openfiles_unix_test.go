//go:build unix

package server_test

import (
	"syscall"
	"testing"
)

// openFiles returns how many files this process may open.
func openFiles(t *testing.T) uint64 {
	t.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	return uint64(files.Cur)
}
