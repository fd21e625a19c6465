package resident

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Unmap unmaps, on Linux, the pages of the program file that were used so far. The kernel keeps them in its cache, and
// maps a page again at its next use, without reading the file. A failure is harmless: the kernel can reclaim these
// pages by itself.
func Unmap() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	for _, m := range clean(f, program) {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.start, m.end-m.start, syscall.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// clean returns the mappings of the program file, from smaps of proc(5), that are not writable and have no anonymous page. Memory
// that a linker has relocated has anonymous pages, and so has code with a debugger's breakpoints. Unmapping would lose
// these changes.
//
// Mappings of other files are left alone. They may be gone by the time that they are unmapped, and the memory of Go's runtime may be at their address.
func clean(smaps io.Reader, program string) (found []mapping) {
	var m mapping
	var candidate bool
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if start, end, ok := addresses(fields[0]); ok {
			m = mapping{start, end}
			candidate = len(fields) > 5 && strings.HasPrefix(fields[1], "r-") && strings.HasSuffix(lines.Text(), " "+program)
		} else if candidate && len(fields) > 1 && fields[0] == "Anonymous:" && fields[1] == "0" {
			found = append(found, m)
		}
	}
	return found
}

// addresses parses the range at the start of a mapping.
func addresses(text string) (start, end uintptr, ok bool) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return 0, 0, false
	}
	a, errA := strconv.ParseUint(from, 16, strconv.IntSize)
	b, errB := strconv.ParseUint(to, 16, strconv.IntSize)
	return uintptr(a), uintptr(b), errA == nil && errB == nil
}
