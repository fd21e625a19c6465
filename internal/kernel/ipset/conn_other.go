//go:build !linux

package ipset

// Conn is a connection to the sets of one network namespace, on Linux.
type Conn struct{}

// Open fails: IP sets need Linux.
func Open() (*Conn, error) { return nil, ErrUnsupported }

// Check fails.
func (*Conn) Check() error { return ErrUnsupported }

// Close does nothing.
func (*Conn) Close() {}

// Create fails.
func (*Conn) Create(Set) error { return ErrUnsupported }

// Empty returns [ErrUnsupported].
func (*Conn) Empty(string) error { return ErrUnsupported }

// Destroy fails.
func (*Conn) Destroy(string) error { return ErrUnsupported }

// IsBusy returns false.
func IsBusy(error) bool { return false }

// Add fails.
func (*Conn) Add(Set, []Element) error { return ErrUnsupported }

// Delete fails.
func (*Conn) Delete(Set, []Element) error { return ErrUnsupported }

// Sets fails.
func (*Conn) Sets(string) ([]Set, error) { return nil, ErrUnsupported }

// Counts fails.
func (*Conn) Counts(Set) ([]Counted, error) { return nil, ErrUnsupported }

// Read fails.
func (*Conn) Read(Set) ([]Element, error) { return nil, ErrUnsupported }
