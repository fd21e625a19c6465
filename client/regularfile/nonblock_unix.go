//go:build unix

package regularfile

import "syscall"

// nonblock makes the open of a named pipe return at once.
const nonblock = syscall.O_NONBLOCK
