package bpfarray

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Array is an array map as this process sees it. Its words have 64 bits, and are read and written atomically.
type Array struct {
	bytes []byte
	words []uint64
	each  uint32
}

// Of returns the memory of a map that was made with BPF_F_MMAPABLE. The map remains the caller's. The caller must Close the array, and may close the map before.
func Of(m *ebpf.Map) (Array, error) {
	each := (m.ValueSize() + 7) / 8
	size := int(each) * 8 * int(m.MaxEntries())
	pages := (size + unix.Getpagesize() - 1) / unix.Getpagesize() * unix.Getpagesize()
	bytes, err := unix.Mmap(m.FD(), 0, pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return Array{}, fmt.Errorf("mapping an array of %d elements: %w", m.MaxEntries(), err)
	}
	return Array{bytes, unsafe.Slice((*uint64)(unsafe.Pointer(&bytes[0])), size/8), each}, nil
}

// Close lets go of the memory. Only one goroutine may call it, when no other one reads or writes.
func (a *Array) Close() error {
	if a.bytes == nil {
		return nil
	}
	bytes := a.bytes
	*a = Array{}
	return unix.Munmap(bytes)
}

// Size returns how many elements there are.
func (a *Array) Size() uint32 { return uint32(len(a.words)) / a.each }

// Each returns how many words an element has.
func (a *Array) Each() uint32 { return a.each }

// Load reads a word of an element.
func (a *Array) Load(element, word uint32) uint64 {
	return atomic.LoadUint64(&a.words[element*a.each+word])
}

// Store writes a word of an element.
func (a *Array) Store(element, word uint32, v uint64) {
	atomic.StoreUint64(&a.words[element*a.each+word], v)
}
