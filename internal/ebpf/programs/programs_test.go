//go:build linux

package programs

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"go/build"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/await"
)

// newCgroup makes a cgroup that nobody is in. It skips the test where that is not possible.
func newCgroup(t *testing.T) string {
	t.Helper()
	root, err := cgroupMount()
	if err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp(root, "switchyard-test-")
	if err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	return dir
}

// load loads the programs. It skips the test where that is not possible.
func load(t *testing.T, s Settings) *ebpf.Collection {
	t.Helper()
	spec, err := Load(s)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestVerifier: this kernel takes the programs, with all settings, and attaches them.
func TestVerifier(t *testing.T) {
	cgroup, err := OpenCgroup(newCgroup(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	for _, s := range []Settings{
		{Node: 1}, {Node: 1, NodeOnly: true}, {Limited: true}, {Node: 1 << 40, Limited: true, MeshPorts: []uint16{15001, 4140, 1, 65535}},
		{Node: 1, Counting: true}, {Node: 1 << 40, Limited: true, MeshPorts: []uint16{15001, 4140, 1, 65535}, Counting: true},
	} {
		c := load(t, s)
		var sizes []string
		for _, h := range hooks {
			n, _ := c.Programs[h.name].Info()
			verified, ok := n.VerifiedInstructions()
			if !ok || verified == 0 {
				t.Errorf("%s: %d instructions verified", h.name, verified)
			}
			sizes = append(sizes, fmt.Sprintf("%s %d", h.name, verified))
		}
		a, err := Attach(cgroup, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Check(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("%+v: instructions verified: %s", s, strings.Join(sizes, ", "))
	}
	if _, err := Load(Settings{MeshPorts: make([]uint16, MaxMeshPorts+1)}); err == nil {
		t.Error("more mesh ports than there is room for are taken")
	}
}

// TestCounting: programs count if that is set, and else they are without the maps and all instructions for it.
func TestCounting(t *testing.T) {
	for _, counting := range []bool{false, true} {
		c := load(t, Settings{Node: 1, MeshPorts: []uint16{15001}, Counting: counting})
		names := map[ebpf.MapID]string{}
		for name, m := range c.Maps {
			info, err := m.Info()
			if err != nil {
				t.Fatal(err)
			}
			id, _ := info.ID()
			names[id] = name
		}
		for program, counts := range map[string]string{"connect4": "counts4", "connect6": "counts6"} {
			info, err := c.Programs[program].Info()
			if err != nil {
				t.Fatal(err)
			}
			ids, ok := info.MapIDs()
			if !ok {
				t.Fatalf("the maps of %s are not known", program)
			}
			var has []string
			for _, id := range ids {
				has = append(has, names[id])
			}
			if slices.Contains(has, counts) != counting || (c.Maps[counts] != nil) != counting || !slices.Contains(has, "frontends"+program[len(program)-1:]) {
				t.Errorf("counting %v: %s has the maps %v", counting, program, has)
			}
		}
		if len(c.Programs) != len(hooks) {
			t.Errorf("counting %v: %d programs are loaded, want %d", counting, len(c.Programs), len(hooks))
		}
	}
	counting, err := Load(Settings{Node: 1, Counting: true})
	if err != nil {
		t.Fatal(err)
	}
	not, err := Load(Settings{Node: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hooks {
		if same := slices.Equal(opcodes(not, h.name), opcodes(counting, h.name)); same != strings.HasPrefix(h.name, "getpeername") {
			t.Errorf("%s is the same whether it counts or not: %v", h.name, same)
		}
	}
}

func opcodes(spec *ebpf.CollectionSpec, program string) (list []asm.OpCode) {
	for _, in := range spec.Programs[program].Instructions {
		list = append(list, in.OpCode)
	}
	return list
}

// TestSevered: links of a cgroup that is removed are noticed, and programs cannot be replaced there.
func TestSevered(t *testing.T) {
	dir := newCgroup(t)
	cgroup, err := OpenCgroup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	old, next := load(t, Settings{Node: 1}), load(t, Settings{Node: 2})
	a, err := Attach(cgroup, old)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	attached := func() (ids []ebpf.ProgramID) {
		for _, l := range a.links {
			info, err := l.Info()
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, info.Program)
		}
		return ids
	}
	programsOf := func(c *ebpf.Collection) (ids []ebpf.ProgramID) {
		for _, h := range hooks {
			info, err := c.Programs[h.name].Info()
			if err != nil {
				t.Fatal(err)
			}
			id, _ := info.ID()
			ids = append(ids, id)
		}
		return ids
	}
	if err := a.Update(old, next); err != nil {
		t.Fatal(err)
	}
	if got := attached(); !slices.Equal(got, programsOf(next)) {
		t.Errorf("programs %v are attached, want %v", got, programsOf(next))
	}
	// The third one cannot be replaced: those before it are put back.
	broken := &ebpf.Collection{Programs: map[string]*ebpf.Program{}}
	maps.Copy(broken.Programs, old.Programs)
	closed, err := old.Programs[hooks[2].name].Clone()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	broken.Programs[hooks[2].name] = closed
	if err := a.Update(next, broken); err == nil {
		t.Error("a program was replaced by one that is closed")
	}
	if got := attached(); !slices.Equal(got, programsOf(next)) {
		t.Errorf("programs %v are attached after an update that failed, want %v", got, programsOf(next))
	}
	if err := a.Check(); err != nil {
		t.Errorf("attached programs are taken for detached: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the loss of the cgroup is noticed", func() bool { return errors.Is(a.Check(), ErrSevered) })
	if err := a.Update(next, old); err == nil {
		t.Error("programs were replaced in a cgroup that is gone")
	}
}

func TestOpenCgroup(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/does/not/exist", "/proc/self/mountinfo"} {
		if f, err := OpenCgroup(path); err == nil {
			t.Errorf("%s is taken for a cgroup", f.Name())
		}
	}
}

func TestUnescape(t *testing.T) {
	if got := unescape(`/a\040b\011c\012d\134e`); got != "/a b\tc\nd\\e" {
		t.Errorf("unescaped: %q", got)
	}
}

const inContainer = "SWITCHYARD_TEST_CONTAINER"

// TestRootCgroup: the root is found, also from a container that sees nothing but its own cgroup.
func TestRootCgroup(t *testing.T) {
	inode := func(f *os.File) uint64 {
		defer f.Close()
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	if os.Getenv(inContainer) != "" {
		mounted, err := cgroupMount()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "cgroup2", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		own, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if inode(own) == rootInode {
			t.Fatal("the container sees the root of all cgroups")
		}
	} else {
		cgroup, err := os.Open(newCgroup(t))
		if err != nil {
			t.Fatal(err)
		}
		defer cgroup.Close()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestRootCgroup$", "-test.v")
		cmd.Env = append(os.Environ(), inContainer+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			UseCgroupFD: true, CgroupFD: int(cgroup.Fd()), Unshareflags: syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNS,
		}
		if out, err := cmd.CombinedOutput(); errors.Is(err, syscall.EPERM) {
			t.Skip(err)
		} else if err != nil || !bytes.Contains(out, []byte("PASS: TestRootCgroup")) {
			t.Errorf("in a container: %v\n%s", err, out)
		}
	}
	root, err := RootCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if n := inode(root); n != rootInode {
		t.Errorf("the root cgroup has inode %d", n)
	}
}

// generated are the directories with programs, seen from here.
var generated = []string{".", "../ebpftest", "../../edge/programs"}

// TestSourcesAreCompiled: what is embedded was made from the sources as they are.
func TestSourcesAreCompiled(t *testing.T) {
	for _, dir := range generated {
		want, err := os.ReadFile(filepath.Join(dir, "sources.sha256"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sha256sum", "--check", "--strict", "--quiet")
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(want)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: the sources have changed since they were compiled: run \"make programs\"\n%s", dir, out)
		}
		sources, _ := filepath.Glob(filepath.Join(dir, "*.[ch]"))
		for _, path := range sources {
			if !bytes.Contains(want, []byte("  "+filepath.Base(path)+"\n")) {
				t.Errorf("%s is not in sources.sha256: run \"make programs\"", path)
			}
		}
	}
}

// TestLoadNeeds64Bits: the programs read a route as one word. Elsewhere the error names another mode. make test-arch runs this for arm.
func TestLoadNeeds64Bits(t *testing.T) {
	_, err := Load(Settings{})
	if strconv.IntSize == 64 && err != nil || strconv.IntSize == 32 && (err == nil || !strings.Contains(err.Error(), "set mode nftables")) {
		t.Errorf("with words of %d bits: %v", strconv.IntSize, err)
	}
}

// TestEveryArchitectureHasPrograms: a build for any architecture of a release embeds programs in its byte order.
func TestEveryArchitectureHasPrograms(t *testing.T) {
	for arch, order := range map[string]elf.Data{
		"amd64": elf.ELFDATA2LSB, "arm64": elf.ELFDATA2LSB, "ppc64le": elf.ELFDATA2LSB, "riscv64": elf.ELFDATA2LSB, "s390x": elf.ELFDATA2MSB,
	} {
		target := build.Default
		target.GOOS, target.GOARCH = "linux", arch
		for _, dir := range generated {
			pkg, err := target.ImportDir(dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[string]int{".": 2, "../ebpftest": 1, "../../edge/programs": 1}[dir]; len(pkg.EmbedPatterns) != want {
				t.Errorf("%s for %s embeds %v, want %d objects", dir, arch, pkg.EmbedPatterns, want)
			}
			for _, name := range pkg.EmbedPatterns {
				object, err := elf.Open(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if object.Data != order {
					t.Errorf("%s for %s is %v, want %v", name, arch, object.Data, order)
				}
				object.Close()
			}
		}
	}
}

// TestProgramsAreCompiledAgain compiles the sources and compares, where that can be done.
func TestProgramsAreCompiledAgain(t *testing.T) {
	if _, err := exec.LookPath("clang-14"); err != nil {
		t.Skip("clang-14 is not installed")
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("libbpf-dev is not installed")
	}
	for _, dir := range generated {
		out := t.TempDir()
		for _, directive := range directives(t, dir) {
			cmd := exec.Command("sh", "-c", strings.Replace(directive, " bpf2go ", " bpf2go -output-dir "+out+" ", 1))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOPACKAGE="+map[bool]string{true: "ebpftest", false: "programs"}[dir == "../ebpftest"])
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", dir, err, text)
			}
		}
		files, err := os.ReadDir(out)
		if err != nil || len(files) == 0 {
			t.Fatalf("nothing was compiled: %v", err)
		}
		for _, f := range files {
			if !sameFile(t, filepath.Join(out, f.Name()), filepath.Join(dir, f.Name())) {
				t.Errorf("%s differs from what its source is compiled to now: run \"make programs\"", filepath.Join(dir, f.Name()))
			}
		}
	}
}

// directives returns the commands in a directory that compile programs.
func directives(t *testing.T, dir string) (list []string) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(dir, "*_linux.go"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if command, is := strings.CutPrefix(line, "//go:generate "); is && strings.Contains(command, " bpf2go ") {
				list = append(list, command)
			}
		}
	}
	return list
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	var contents [2][]byte
	for i, path := range []string{a, b} {
		var err error
		if contents[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return bytes.Equal(contents[0], contents[1])
}
