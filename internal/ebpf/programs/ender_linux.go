package programs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Ender ends connections by the endpoint that they were translated to. Its methods may be called concurrently.
type Ender struct {
	programs *ebpf.Collection
}

// MostGone is for how many endpoints an [Ender] has room: max_entries of the map in ends.c.
const MostGone = 65536

// NewEnder returns an ender of the connections that programs with this map have noted. It needs CAP_PERFMON in
// addition to CAP_BPF, and Linux 6.5.
func NewEnder(connections *ebpf.Map) (*Ender, error) {
	spec, err := loadEnds()
	if err != nil {
		return nil, fmt.Errorf("the program in this executable that ends connections: %w", err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"connections": connections}})
	if err != nil {
		return nil, fmt.Errorf("loading the program that ends connections (Linux 6.5 and CAP_PERFMON are needed): %w", err)
	}
	return &Ender{c}, nil
}

// Close lets go of the program.
func (e *Ender) Close() { e.programs.Close() }

// Add adds an endpoint that is gone.
func (e *Ender) Add(endpoint netip.AddrPort) error {
	return e.programs.Maps["gone"].Put(mapped(endpoint), uint32(1))
}

// Remove removes an endpoint, if it is there. Once it has returned, no new connection to the endpoint is ended.
func (e *Ender) Remove(endpoint netip.AddrPort) error {
	err := e.programs.Maps["gone"].Delete(mapped(endpoint))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Walk ends the connections to the endpoints, in the calling thread's network namespace. A socket in the middle of connect() may be missed.
func (e *Ender) Walk() error {
	walk, err := link.AttachIter(link.IterOptions{Program: e.programs.Programs["end_connections"]})
	if err != nil {
		return err
	}
	defer walk.Close()
	r, err := walk.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// mapped returns struct endpoint of ends.c.
func mapped(e netip.AddrPort) (key [20]byte) {
	addr := e.Addr().As16()
	copy(key[:], addr[:])
	binary.BigEndian.PutUint16(key[16:], e.Port())
	return key
}
