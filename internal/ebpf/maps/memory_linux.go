package maps

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// memory is an array map as this process sees it. Its words have 64 bits, and are read and written atomically.
type memory struct {
	bytes []byte
	words []uint64
	// each is how many words an element has.
	each uint32
}

func mapMemory(m *ebpf.Map) (memory, error) {
	each := (m.ValueSize() + 7) / 8
	size := int(each) * 8 * int(m.MaxEntries())
	pages := (size + unix.Getpagesize() - 1) / unix.Getpagesize() * unix.Getpagesize()
	bytes, err := unix.Mmap(m.FD(), 0, pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return memory{}, fmt.Errorf("mapping an array of %d elements: %w", m.MaxEntries(), err)
	}
	return memory{bytes, unsafe.Slice((*uint64)(unsafe.Pointer(&bytes[0])), size/8), each}, nil
}

func (m *memory) close() error {
	if m.bytes == nil {
		return nil
	}
	bytes := m.bytes
	*m = memory{}
	return unix.Munmap(bytes)
}

// size returns how many elements there are.
func (m *memory) size() uint32 { return uint32(len(m.words)) / m.each }

func (m *memory) load(element, word uint32) uint64 {
	return atomic.LoadUint64(&m.words[element*m.each+word])
}

func (m *memory) store(element, word uint32, v uint64) {
	atomic.StoreUint64(&m.words[element*m.each+word], v)
}
