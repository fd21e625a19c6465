package ebpftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

//go:generate go tool -modfile=../../../tools/go.mod bpf2go -target bpfel,bpfeb -no-global-types -cc clang-14 -cflags "-O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" lookups lookups.c
//go:generate sh -c "sha256sum *.c ../programs/lookup.h > sources.sha256"

// Reader reads maps as hooks do.
type Reader struct {
	Tables   *maps.Tables
	Programs *ebpf.Collection
}

// NewReader makes empty maps with room for needs. Dawdle is how long readers wait between a route and its slot, one
// time out of 16. The caller must Close the Reader.
func NewReader(needs maps.Needs, dawdle time.Duration) (*Reader, error) {
	spec, err := loadLookups()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["dawdle"].Set(uint64(dawdle)); err != nil {
		return nil, err
	}
	maps.Resize(spec, needs)
	r := &Reader{}
	if r.Programs, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("loading the lookups of hooks: %w", err)
	}
	if r.Tables, err = maps.New(r.Programs, nil); err != nil {
		r.Programs.Close()
		return nil, err
	}
	return r, nil
}

// Close lets go of the maps.
func (r *Reader) Close() error {
	err := r.Tables.Close()
	r.Programs.Close()
	return err
}

// Answer is where a frontend leads.
type Answer struct {
	// Word is the word of the route, 0 if there is none.
	Word uint64
	// Check is what the value of the frontend must have in its upper half.
	Check uint32
	// Slot is the number of the drawn slot, and Endpoint is its endpoint.
	Slot     uint32
	Endpoint netip.AddrPort
}

// Ask looks a frontend up. One without an address is a NodePort of that family.
func (r *Reader) Ask(family state.Family, f plan.Frontend) (Answer, error) {
	program, addr := r.Programs.Programs["ask4"], 4
	if family == state.IPv6 {
		program, addr = r.Programs.Programs["ask6"], 16
	}
	code, out, err := program.Test(question(Key(family, f)))
	if err == nil && code != 0 {
		err = fmt.Errorf("the program has returned %d", code)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("asking for %v: %w", f, err)
	}
	b := out[ethernet:]
	a := Answer{
		Word: binary.NativeEndian.Uint64(b), Check: binary.NativeEndian.Uint32(b[8:]), Slot: binary.NativeEndian.Uint32(b[12:]),
	}
	if ip, ok := netip.AddrFromSlice(b[16 : 16+addr]); ok {
		a.Endpoint = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[16+addr:]))
	}
	return a, nil
}

// ethernet is the size of the header of a packet.
const ethernet = 14

// Key returns struct frontend4 or frontend6 of lookup.h.
func Key(family state.Family, f plan.Frontend) []byte {
	key := make([]byte, 4, 20)
	if family == state.IPv6 {
		key = key[:16]
	}
	if f.Addr.IsValid() {
		key = f.Addr.AsSlice()
	}
	return append(binary.BigEndian.AppendUint16(key, f.Port), byte(state.TCP), 0)
}

func question(key []byte) []byte {
	packet := make([]byte, 64)
	copy(packet[ethernet:], key)
	return packet
}

// Reads counts what readers have seen.
type Reads struct {
	// Changes is how often the maps were changed during the reads.
	Changes uint64
	// Reads are all, and Misses those that found nothing.
	Reads, Misses uint64
	// Mixed are the reads that found an endpoint of another set than the route's, and Strays the reads that found
	// another frontend's route.
	Mixed, Strays uint64
}

// While has the program with this name look a frontend of IPv4 up again and again while change is called n times.
func (r *Reader) While(ctx context.Context, program string, f plan.Frontend, n int, change func(i int) error) (Reads, error) {
	const atOnce = 2000
	packet := question(Key(state.IPv4, f))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var readers sync.WaitGroup
	var failed error
	readers.Go(func() {
		for ctx.Err() == nil && failed == nil {
			_, _, failed = r.Programs.Programs[program].Benchmark(packet, atOnce, nil)
		}
	})
	var err error
	changes := 0
	for ; changes < n && ctx.Err() == nil && err == nil; changes++ {
		err = change(changes)
	}
	stop()
	readers.Wait()
	reads := Reads{Changes: uint64(changes)}
	for i, to := range []*uint64{&reads.Reads, &reads.Misses, &reads.Mixed, &reads.Strays} {
		var perCPU []uint64
		if lookErr := r.Programs.Maps["reads"].Lookup(uint32(i), &perCPU); lookErr != nil {
			err = errors.Join(err, lookErr)
		}
		for _, v := range perCPU {
			*to += v
		}
	}
	return reads, errors.Join(err, failed)
}

// Flip changes a route n times to other endpoints, while a reader dawdles between route and slot. After each change, after is called, if it
// is not nil.
func (r *Reader) Flip(ctx context.Context, n int, after func()) (Reads, error) {
	frontend := plan.Frontend{Addr: netip.AddrFrom4([4]byte{10, 96, 0, 1}), Port: 80}
	had := &maps.Placed{Route: tagged(0)}
	var err error
	if had.At, err = r.Tables.Add(&had.Route); err != nil {
		return Reads{}, err
	}
	if err := errors.Join(r.Tables.Put(state.IPv4, frontend, had.At), r.Tables.Flush()); err != nil {
		return Reads{}, err
	}
	// Sets are used again and again: making them takes longer than a flip.
	sets := make([]plan.Route, 255)
	for i := range sets {
		sets[i] = tagged(i)
	}
	return r.While(ctx, "read4", frontend, n, func(i int) error {
		next := &sets[(i+1)%len(sets)]
		for {
			r.Tables.Reclaim()
			at, err := r.Tables.Replace(had, next)
			if err == nil {
				had = &maps.Placed{Route: *next, At: at}
				break
			}
			if !errors.Is(err, maps.ErrFull) {
				return err
			}
			runtime.Gosched() // until a grace period has passed
		}
		if after != nil {
			after()
		}
		return nil
	})
}

// tagged returns a route whose clients and endpoints' ports are the number of a set.
func tagged(set int) plan.Route {
	tag := 1 + set%255
	p := &state.Port{Protocol: state.TCP, Family: state.IPv4}
	p.Internal.Inside.Verdict = state.Forward
	for i := range 5 {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(set), byte(i)})
		p.Internal.Inside.Endpoints = append(p.Internal.Inside.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr, uint16(tag))})
	}
	return plan.Route{Port: p, Clients: plan.Clients(tag)}
}

// MixedReads changes a route n times to other endpoints, while a reader dawdles between route and slot. None of its reads may be mixed.
func MixedReads(ctx context.Context, n int, dawdle time.Duration) (reads Reads, err error) {
	r, err := NewReader(maps.Needs{Frontends: [2]int{1, 0}, Routes: 1, Slots: [2]int{1 << 19, 0}}, dawdle)
	if err != nil {
		return Reads{}, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Flip(ctx, n, nil)
}
