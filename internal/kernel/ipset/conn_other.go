//go:build !linux

package ipset

import "errors"

// Conn is a connection to the sets of one network namespace, on Linux.
type Conn struct{}

// ErrFull is wrapped by errors about sets that have as many elements as they take, and about sets that there are too many of.
var ErrFull = errors.New("no room")

// Open fails: IP sets need Linux.
func Open() (*Conn, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (*Conn) Close() {}

// Create fails.
func (*Conn) Create(Set) error { return errors.ErrUnsupported }

// Destroy fails.
func (*Conn) Destroy(string) error { return errors.ErrUnsupported }

// IsBusy returns false.
func IsBusy(error) bool { return false }

// Add fails.
func (*Conn) Add(Set, []Element) error { return errors.ErrUnsupported }

// Delete fails.
func (*Conn) Delete(Set, []Element) error { return errors.ErrUnsupported }

// Sets fails.
func (*Conn) Sets(string) ([]Set, error) { return nil, errors.ErrUnsupported }

// Read fails.
func (*Conn) Read(Set) ([]Element, error) { return nil, errors.ErrUnsupported }
