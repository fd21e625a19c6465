//go:build !unix

package regularfile

// nonblock is not needed where no open waits.
const nonblock = 0
