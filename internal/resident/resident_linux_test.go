package resident

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestClean picks what can be unmapped without loss.
func TestClean(t *testing.T) {
	const anonymous, own = "Rss: 64 kB\nAnonymous:             0 kB\nVmFlags: rd mr\n", "Rss: 64 kB\nAnonymous:             4 kB\nVmFlags: rd mr\n"
	for name, c := range map[string]struct {
		smaps string
		want  []mapping
	}{
		"text":                      {"00400000-0120c000 r-xp 00000000 fe:00 7 /switchyard\n" + anonymous, []mapping{{0x400000, 0x120c000}}},
		"constants":                 {"0120c000-02000000 r--p 00e0c000 fe:00 7 /switchyard\n" + anonymous, []mapping{{0x120c000, 0x2000000}}},
		"relocated constants":       {"0120c000-02000000 r--p 00e0c000 fe:00 7 /switchyard\n" + own, nil},
		"variables":                 {"02000000-02100000 rw-p 01c00000 fe:00 7 /switchyard\n" + anonymous, nil},
		"heap":                      {"c000000000-c004000000 rw-p 00000000 00:00 0 \n" + anonymous, nil},
		"another file":              {"00400000-0120c000 r-xp 00000000 fe:00 7 /sys/kernel/btf/vmlinux\n" + anonymous, nil},
		"a longer path":             {"00400000-0120c000 r-xp 00000000 fe:00 7 /bin/switchyard\n" + anonymous, nil},
		"memory that is not a file": {"c000000000-c004000000 r--p 00000000 00:00 0 \n" + anonymous, nil},
		"the kernel's":              {"7ffc1000-7ffc3000 r-xp 00000000 00:00 0 [vdso]\n" + anonymous, nil},
		"no access":                 {"7ffc1000-7ffc3000 ---p 00000000 fe:00 7 /lib/x.so\n" + anonymous, nil},
		"two": {
			"00400000-00401000 r-xp 00000000 fe:00 7 /switchyard\n" + anonymous + "00401000-00402000 rw-p 00000000 fe:00 7 /switchyard\n" + anonymous +
				"00402000-00403000 r--p 00000000 fe:00 7 /a file (deleted)\n" + anonymous + "00403000-00404000 r--p 00000000 fe:00 7 /switchyard\n" + anonymous,
			[]mapping{{0x400000, 0x401000}, {0x403000, 0x404000}},
		},
		"nothing":  {"", nil},
		"cut off":  {"00400000-0120c000 r-xp 00000000 fe:00 7 /switchyard\nRss:", nil},
		"nonsense": {"-\nAnonymous:\n00400000 r-xp\nAnonymous: 0 kB\n", nil},
	} {
		if got := clean(strings.NewReader(c.smaps), "/switchyard"); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %x, want %x", name, got, c.want)
		}
	}
}

// TestTrim checks that pages of the program leave, and that the program goes on as before.
func TestTrim(t *testing.T) {
	before := programRSS(t)
	Trim()
	if after := programRSS(t); after >= before {
		t.Errorf("%d KiB of the program are resident, %d before", after, before)
	}
	if got := strings.Repeat("x", 3); got != "xxx" {
		t.Errorf("got %q", got)
	}
}

// TestUnmapSparesOthers maps and unmaps another file while the program is unmapped. Memory that follows at the same address must keep its content: the runtime
// would crash. github.com/cilium/ebpf maps /sys/kernel/btf/vmlinux, and unmaps it when garbage is collected.
func TestUnmapSparesOthers(t *testing.T) {
	const size, rounds, looks = 1 << 22, 2000, 10_000
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var wait sync.WaitGroup
	stop := make(chan struct{})
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				Unmap()
			}
		}
	})
	defer wait.Wait()
	defer close(stop)
	// The address stays in use in between, so that a failure harms nothing but this test.
	place, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.MunmapPtr(place, size); err != nil {
			t.Error(err)
		}
	}()
	for round := range rounds {
		if _, err := unix.MmapPtr(int(file.Fd()), 0, place, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
		if _, err := unix.MmapPtr(-1, 0, place, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
		word := (*uint64)(place)
		atomic.StoreUint64(word, 1)
		for range looks {
			if atomic.LoadUint64(word) != 1 {
				t.Fatalf("round %d: memory that is not the program's has lost its content", round)
			}
		}
	}
}

// programRSS is how much of files is resident, in KiB.
func programRSS(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "RssFile:" {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the kernel does not count pages of files")
	return 0
}
