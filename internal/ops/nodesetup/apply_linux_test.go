package nodesetup

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// kernel makes a directory that looks like a node's /proc and /sys.
func kernel(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, content := range files {
		path := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func content(t *testing.T, root, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

const (
	establishedFile = netfilter + "nf_conntrack_tcp_timeout_established"
	closeWaitFile   = netfilter + "nf_conntrack_tcp_timeout_close_wait"
	liberalFile     = netfilter + "nf_conntrack_tcp_be_liberal"
	udpFile         = netfilter + "nf_conntrack_udp_timeout"
	udpStreamFile   = netfilter + "nf_conntrack_udp_timeout_stream"
)

func fresh() map[string]string {
	return map[string]string{
		maxFile: "65536\n", hashsizeFile: "16384\n", oomFile: "0\n", cpusFile: "0-7\n", establishedFile: "432000\n",
		closeWaitFile: "60\n", liberalFile: "0\n", udpFile: "30\n", udpStreamFile: "120\n",
	}
}

// defaults are kube-proxy's.
func defaults() Options {
	return Options{
		Conntrack: Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour,
			TCPCloseWaitTimeout: time.Hour},
		OOMScoreAdj: new(-999),
	}
}

func TestApply(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		before  map[string]string // instead of fresh values
		want    map[string]string // what differs from before
	}{
		{name: "nothing asked for"},
		{
			name: "defaults of kube-proxy", options: defaults(),
			want: map[string]string{maxFile: "262144", hashsizeFile: "65536", establishedFile: "86400", closeWaitFile: "3600",
				oomFile: "-999"},
		},
		{
			name: "everything",
			options: Options{Conntrack: Conntrack{TCPBeLiberal: true, UDPTimeout: 10 * time.Second,
				UDPStreamTimeout: 61*time.Second + 900*time.Millisecond}},
			want: map[string]string{liberalFile: "1", udpFile: "10", udpStreamFile: "61"},
		},
		{
			name:    "less than a second is nothing",
			options: Options{Conntrack: Conntrack{UDPTimeout: 999 * time.Millisecond}},
		},
		{
			name:    "a larger limit and a larger hash table stay", // as setSysctls of Kubernetes 1.37 does
			options: Options{Conntrack: Conntrack{MaxPerCore: 1000}},
			before:  map[string]string{maxFile: "1048576", hashsizeFile: "262144"},
		},
		{
			name:    "a hash table too small for a larger limit grows",
			options: Options{Conntrack: Conntrack{MaxPerCore: 100_000}},
			before:  map[string]string{maxFile: "1048576", hashsizeFile: "16384"},
			want:    map[string]string{hashsizeFile: "200000"},
		},
		{
			name:    "a floor alone asks for nothing",
			options: Options{Conntrack: Conntrack{Min: 500_000}},
		},
		{
			name: "score 0", options: Options{OOMScoreAdj: new(0)},
			before: map[string]string{oomFile: "-500"}, want: map[string]string{oomFile: "0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := fresh()
			maps.Copy(files, tt.before)
			root := kernel(t, files)
			if warnings := apply(tt.options, root); warnings != nil {
				t.Errorf("warnings: %v", warnings)
			}
			maps.Copy(files, tt.want)
			for file, value := range files {
				if got := content(t, root, file); got != strings.TrimSpace(value) {
					t.Errorf("%s is %s, want %s", file, got, value)
				}
			}
		})
	}
}

func TestLimit(t *testing.T) {
	const huge = int(^uint(0) >> 1)
	for _, tt := range []struct{ perCore, floor, cpus, want int }{
		{32768, 131072, 2, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 5, 163840},
		{32768, 131072, 32, 1048576},
		{32768, 131072, 33, 1048576},
		{32768, 0, 1, 32768},
		{32768, 3_000_000, 2, 3_000_000},   // a floor that was asked for holds
		{32768, 3_000_000, 100, 1_048_576}, // except here: kube-proxy looks at the bound first
		{0, 131072, 64, 0},
		{-1, 131072, 64, 0},
		{huge, 0, 64, 1048576},
	} {
		if got := (Conntrack{MaxPerCore: tt.perCore, Min: tt.floor}).Limit(tt.cpus); got != tt.want {
			t.Errorf("%d per core, at least %d, %d CPUs: %d, want %d", tt.perCore, tt.floor, tt.cpus, got, tt.want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-3,5": 5, "0,2-3,8-15": 11, "": 0, "3-0": 0, "a": 0, "0-": 0} {
		if got, ok := parseCPUs(list); got != want || ok != (want > 0) {
			t.Errorf("%q: %d CPUs (%v), want %d", list, got, ok, want)
		}
	}
}

// TestNoCPUList is about systems that hide /sys.
func TestNoCPUList(t *testing.T) {
	files := fresh()
	delete(files, cpusFile)
	root := kernel(t, files)
	if got := (&writer{root: root}).cpus(); got != runtime.NumCPU() {
		t.Errorf("%d CPUs, want those of the process, %d", got, runtime.NumCPU())
	}
}

// TestNotLoaded is about nodes where nothing has loaded nf_conntrack yet: one warning for each value, and the rest is written.
func TestNotLoaded(t *testing.T) {
	root := kernel(t, map[string]string{cpusFile: "0-3", oomFile: "0"})
	warnings := apply(defaults(), root)
	var files []string
	for _, err := range warnings {
		w, ok := errors.AsType[*Warning](err)
		if !ok || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "load the kernel module nf_conntrack") {
			t.Errorf("%v: want a Warning about a file that does not exist, with a remedy", err)
			continue
		}
		files = append(files, w.File)
	}
	if want := []string{maxFile, hashsizeFile, establishedFile, closeWaitFile}; strings.Join(files, " ") != strings.Join(want, " ") {
		t.Errorf("warnings about %v, want %v", files, want)
	}
	if got := content(t, root, oomFile); got != "-999" {
		t.Errorf("OOM score is %s although only conntrack is missing, want -999", got)
	}
}

// TestReadOnly makes the files read-only for one thread, as container runtimes do. A value that is right already is
// no warning.
func TestReadOnly(t *testing.T) {
	files := fresh()
	files[closeWaitFile] = "3600"
	root := kernel(t, files)
	result := make(chan []error)
	go func() {
		runtime.LockOSThread() // thrown away with its mounts
		err := errors.Join(
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(root, root, "", unix.MS_BIND, ""),
			unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		)
		if err != nil {
			result <- []error{err}
			return
		}
		o := defaults()
		o.OOMScoreAdj = nil
		result <- apply(o, root)
	}()
	warnings := <-result
	if len(warnings) != 3 {
		t.Fatalf("warnings: %v, want 3", warnings)
	}
	if !errors.Is(warnings[0], syscall.EROFS) {
		t.Errorf("%v: want EROFS", warnings[0])
	}
	want := "cannot set /proc/sys/net/netfilter/nf_conntrack_max to 262144 (it is 65536): read-only file system; " +
		"mount it read-write into the container, set it on the host, or leave it alone with conntrack.maxPerCore: 0 (--conntrack-max-per-core=0)"
	if got := warnings[0].Error(); got != want {
		t.Errorf("warning:\n%s\nwant:\n%s", got, want)
	}
}

// TestKernel runs in a network namespace, where the timeouts can be written and the limit cannot.
func TestKernel(t *testing.T) {
	ns := netnstest.New(t)
	var log strings.Builder
	o := Options{
		Conntrack: Conntrack{MaxPerCore: 1, Min: 1 << 30, TCPEstablishedTimeout: 23 * time.Hour, TCPCloseWaitTimeout: 59 * time.Minute,
			TCPBeLiberal: true, UDPTimeout: 29 * time.Second, UDPStreamTimeout: 119 * time.Second},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	home := content(t, "/", establishedFile)
	err := ns.Do(func() error {
		warnings := Apply(o)
		var limits int
		for _, w := range warnings {
			// The kernel shows the limit to all namespaces and lets only the first one write; hashsize it refuses elsewhere.
			if !errors.Is(w, fs.ErrPermission) && !errors.Is(w, syscall.EROFS) && !errors.Is(w, errors.ErrUnsupported) || !strings.Contains(w.Error(), "--conntrack-max-per-core=0") {
				t.Errorf("unexpected warning: %v", w)
			}
			limits++
		}
		if limits == 0 {
			t.Error("no warning although the limit cannot be written from here")
		}
		for file, want := range map[string]string{establishedFile: "82800", closeWaitFile: "3540", liberalFile: "1", udpFile: "29",
			udpStreamFile: "119"} {
			if got := content(t, "/", file); got != want {
				t.Errorf("%s is %s, want %s", file, got, want)
			}
		}
		log.Reset()
		if again := Apply(o); len(again) != len(warnings) || log.Len() > 0 {
			t.Errorf("the second time: %v, wrote %q; want the same warnings, and nothing written", again, log.String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, "/", establishedFile); got != home {
		t.Errorf("the timeout of the test's own namespace went from %s to %s", home, got)
	}
}

// TestOwnScore gives this process a worse score, which every process may, and then one that does not exist.
func TestOwnScore(t *testing.T) {
	before := content(t, "/", oomFile)
	t.Cleanup(func() {
		if err := overwrite(oomFile, before); err != nil {
			t.Logf("the score stays: %v", err) // not root of the host
		}
	})
	if warnings := Apply(Options{OOMScoreAdj: new(777)}); warnings != nil {
		t.Fatal(warnings)
	}
	if got := content(t, "/", oomFile); got != "777" {
		t.Errorf("score is %s, want 777", got)
	}
	warnings := Apply(Options{OOMScoreAdj: new(1001)})
	if len(warnings) != 1 || !errors.Is(warnings[0], syscall.EINVAL) || !strings.Contains(warnings[0].Error(), "1001") {
		t.Errorf("score 1001: %v, want one warning with EINVAL", warnings)
	}
}
