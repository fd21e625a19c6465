//go:build unix && !solaris && !illumos && !aix

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lockTimeout is how long another process may take to begin to listen. It takes one that is not stopped milliseconds.
const lockTimeout = 5 * time.Second

// lock keeps other processes, and other callers in this one, from beginning to listen at path until unlock is called.
// Only the owner of the lock's file may take the lock. The file is removed in the end. The lock of a dead process is
// free.
func lock(path string) (unlock func(), err error) {
	name := path + ".lock"
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && isAt(f, name) {
			return func() {
				_ = os.Remove(name) // while it is locked, so that it is one's own
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
		// A lock whose file was removed by its holder is no lock: others lock the next file.
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		if time.Since(begun) > lockTimeout {
			return nil, fmt.Errorf("another process has been about to serve this socket for %v: it has locked %s; stop it, or choose another path", lockTimeout, name)
		}
	}
}

// isAt reports whether f is the file that has this name now.
func isAt(f *os.File, name string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(name)
	return err == nil && os.SameFile(own, now)
}
