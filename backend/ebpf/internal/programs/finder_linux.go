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

// Flow is a connection that a hook has translated.
type Flow struct {
	// Client is the address and port of the socket that has connected.
	Client, Endpoint netip.AddrPort
}

// Finder finds connections by the endpoint that they were translated to.
type Finder struct {
	programs *ebpf.Collection
}

// maxSought is for how many endpoints one walk looks.
const maxSought = 4096

// NewFinder returns a finder among the connections that programs with this map have noted. It needs CAP_PERFMON beside CAP_BPF.
func NewFinder(connections *ebpf.Map) (*Finder, error) {
	spec, err := loadFlows()
	if err != nil {
		return nil, fmt.Errorf("the program in this executable that finds connections: %w", err)
	}
	spec.Maps["gone"].MaxEntries = maxSought
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"connections": connections}})
	if err != nil {
		return nil, fmt.Errorf("loading the program that finds connections (CAP_PERFMON is needed): %w", err)
	}
	return &Finder{c}, nil
}

// Close lets go of the program.
func (f *Finder) Close() { f.programs.Close() }

// Find returns connections of all network namespaces to these endpoints, at most so many for each 4,096 of them. connecting is set if there are further ones whose sockets are in
// the middle of connect() and have no port yet.
func (f *Finder) Find(endpoints []netip.AddrPort, most int) (flows []Flow, connecting bool, err error) {
	for len(endpoints) > 0 {
		n := min(len(endpoints), maxSought)
		some, more, err := f.find(endpoints[:n], most)
		if err != nil {
			return nil, false, fmt.Errorf("looking for connections to endpoints that are gone: %w", err)
		}
		flows, connecting, endpoints = append(flows, some...), connecting || more, endpoints[n:]
	}
	return flows, connecting, nil
}

func (f *Finder) find(endpoints []netip.AddrPort, most int) (flows []Flow, connecting bool, err error) {
	gone := f.programs.Maps["gone"]
	var keys [][20]byte
	for _, e := range endpoints {
		key := mapped(e)
		if err := gone.Put(key, uint32(1)); err != nil {
			return nil, false, err
		}
		keys = append(keys, key)
	}
	defer func() {
		for _, key := range keys {
			if failed := gone.Delete(key); failed != nil && !errors.Is(failed, ebpf.ErrKeyNotExist) {
				err = errors.Join(err, failed)
			}
		}
	}()
	walk, err := link.AttachIter(link.IterOptions{Program: f.programs.Programs["find_flows"], Map: f.programs.Maps["connections"]})
	if err != nil {
		return nil, false, err
	}
	defer walk.Close()
	r, err := walk.Open()
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	bytes, err := io.ReadAll(io.LimitReader(r, int64(most)*flowSize))
	if err != nil {
		return nil, false, err
	}
	for ; len(bytes) >= flowSize; bytes = bytes[flowSize:] {
		flow := Flow{
			Client:   netip.AddrPortFrom(addrOf(bytes), binary.NativeEndian.Uint16(bytes[32:])),
			Endpoint: netip.AddrPortFrom(addrOf(bytes[16:]), binary.BigEndian.Uint16(bytes[34:])),
		}
		if flow.Client.Port() == 0 {
			connecting = true
			continue
		}
		flows = append(flows, flow)
	}
	return flows, connecting, nil
}

// flowSize is the size of struct flow in flows.c.
const flowSize = 36

func addrOf(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[:16])).Unmap() }

// mapped returns struct endpoint of flows.c.
func mapped(e netip.AddrPort) (key [20]byte) {
	addr := e.Addr().As16()
	copy(key[:], addr[:])
	binary.BigEndian.PutUint16(key[16:], e.Port())
	return key
}
