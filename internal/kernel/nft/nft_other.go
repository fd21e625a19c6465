//go:build !linux

package nft

import (
	"errors"
	"fmt"
)

// Conn is a netlink socket to nf_tables, which only Linux has.
type Conn struct{}

var errNotLinux = fmt.Errorf("nf_tables: %w on this operating system", errors.ErrUnsupported)

// Dial fails: there is no nf_tables on this operating system.
func Dial() (*Conn, error) { return nil, errNotLinux }

// Close does nothing.
func (*Conn) Close() error { return nil }

// Commit fails.
func (*Conn) Commit(*Batch) error { return errNotLinux }

// Generation fails.
func (*Conn) Generation() (uint32, error) { return 0, errNotLinux }

// Has fails.
func (*Conn) Has(Feature) (bool, error) { return false, errNotLinux }

// Port fails.
func (*Conn) Port() (uint32, error) { return 0, errNotLinux }

// Table fails.
func (*Conn) Table(Table) (TableInfo, error) { return TableInfo{}, errNotLinux }

// HasTable fails.
func (*Conn) HasTable(Table) (bool, error) { return false, errNotLinux }

// BaseChains fails.
func (*Conn) BaseChains() ([]BaseChain, error) { return nil, errNotLinux }

// ChainUses fails.
func (*Conn) ChainUses(Family) ([]ChainUse, error) { return nil, errNotLinux }

// Elems fails.
func (*Conn) Elems(Table, string) ([]Elem, error) { return nil, errNotLinux }

// Fill fails.
func (*Conn) Fill(Table, string) (Fill, bool, error) { return Fill{}, false, errNotLinux }

// Find fails.
func (*Conn) Find(Table, string, int, []byte, func(int, []byte)) error { return errNotLinux }

// HasAll fails.
func (*Conn) HasAll(Table, string, int, []byte) (bool, error) { return false, errNotLinux }

// FindElems fails.
func (*Conn) FindElems(Table, string, int, []byte, func(int, Elem)) error { return errNotLinux }

// ReadSkeleton fails.
func (*Conn) ReadSkeleton(Table) (*Skeleton, error) { return nil, errNotLinux }
