package confine

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
)

// profile is a file of seccomp rules as container runtimes read it, as far as ours goes.
type profile struct {
	Comment         string
	DefaultAction   string
	DefaultErrnoRet uint32
	Architectures   []string
	Syscalls        []rule
}

type rule struct {
	Comment string
	Names   []string
	Action  string
	Args    []condition
}

type condition struct {
	Index           uint32
	Value, ValueTwo uint64
	Op              string
}

// The seccomp profiles of most modes, and of modes ebpf and iptables.
const (
	profileFile         = "../../seccomp/switchyard.json"
	ebpfProfileFile     = "../../seccomp/switchyard-ebpf.json"
	iptablesProfileFile = "../../seccomp/switchyard-iptables.json"
)

func readProfile(t *testing.T) *profile { return readProfileFile(t, profileFile) }

func readProfileFile(t *testing.T, profileFile string) *profile {
	t.Helper()
	f, err := os.Open(profileFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	var p profile
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%s: %v", profileFile, err)
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || p.DefaultErrnoRet == 0 {
		t.Fatalf("%s: what is not listed must fail, with an error of its own: %s %d", profileFile, p.DefaultAction, p.DefaultErrnoRet)
	}
	return &p
}

// syscallNumbers are the system call numbers of an architecture, by name, as golang.org/x/sys has them.
func syscallNumbers(t *testing.T, arch string) map[string]uint32 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "zsysnum_linux_"+arch+".go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	numbers := make(map[string]uint32)
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if name, found := strings.CutPrefix(v.Names[0].Name, "SYS_"); found {
				number, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				numbers[strings.ToLower(name)] = uint32(number)
			}
		}
		return true
	})
	// The kernel's headers call it by two names.
	if n, ok := numbers["fstatat"]; ok {
		numbers["newfstatat"] = n
	}
	return numbers
}

// Of linux/audit.h and linux/seccomp.h.
const (
	archX86  = 0xc000003e
	archARM  = 0xc00000b7
	retAllow = 0x7fff0000
	retErrno = 0x00050000
	retTrap  = 0x00030000
	retKill  = 0x80000000
)

// filter turns the profile into a program for this machine.
func (p *profile) filter(t *testing.T) []bpf.RawInstruction {
	return p.filterElse(t, retErrno|p.DefaultErrnoRet)
}

// strict is a filter that has a program crash, and say where, at calls that are not in the profile: Go tries another way after an
// error, and nobody would hear of it.
func (p *profile) strict(t *testing.T) []bpf.RawInstruction { return p.filterElse(t, retTrap) }

// filterElse makes a filter that answers what is not allowed.
func (p *profile) filterElse(t *testing.T, otherwise uint32) []bpf.RawInstruction {
	t.Helper()
	arch := map[string]uint32{"amd64": archX86, "arm64": archARM}[runtime.GOARCH]
	if arch == 0 {
		t.Skipf("the profile is for x86-64 and arm64; this is %s", runtime.GOARCH)
	}
	load := func(at uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: at, Size: 4} }
	program := []bpf.Instruction{
		load(4), bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1}, bpf.RetConstant{Val: retKill},
		load(0), // calls of the x32 ABI have other numbers
	}
	numbers := syscallNumbers(t, runtime.GOARCH)
	for _, rule := range p.Syscalls {
		if rule.Action != "SCMP_ACT_ALLOW" {
			t.Fatalf("%v: the action is %s", rule.Names, rule.Action)
		}
		var then []bpf.Instruction // with the number loaded, and loaded again if it falls through
		for _, a := range rule.Args {
			mask, want := uint64(1<<64-1), a.Value
			if a.Op == "SCMP_CMP_MASKED_EQ" {
				mask, want = a.Value, a.ValueTwo
			} else if a.Op != "SCMP_CMP_EQ" {
				t.Fatalf("%v: %s is not known here", rule.Names, a.Op)
			}
			if len(rule.Args) > 1 {
				t.Fatalf("%v: several conditions are not known here", rule.Names)
			}
			at := 16 + 8*a.Index
			then = []bpf.Instruction{
				load(at), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(mask)},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(want), SkipTrue: 4},
				load(at + 4), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(mask >> 32)},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(want >> 32), SkipTrue: 1},
			}
		}
		then = append(then, bpf.RetConstant{Val: retAllow})
		if len(rule.Args) > 0 {
			then = append(then, load(0))
		}
		for _, name := range rule.Names {
			number, known := numbers[name]
			if !known {
				continue // of the other architecture
			}
			program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(then))})
			program = append(program, then...)
		}
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: otherwise}))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestProfileNamesSystemCalls finds misspelt names, which container runtimes pass over in silence, and names that occur twice.
func TestProfileNamesSystemCalls(t *testing.T) {
	amd64, arm64 := syscallNumbers(t, "amd64"), syscallNumbers(t, "arm64")
	seen := make(map[string]bool)
	for _, rule := range readProfile(t).Syscalls {
		for _, name := range rule.Names {
			_, known := amd64[name]
			_, alsoKnown := arm64[name]
			if !known && !alsoKnown {
				t.Errorf("no architecture has a system call %s", name)
			}
			if id := fmt.Sprint(name, rule.Args); seen[id] {
				t.Errorf("%s is there twice", name)
			} else {
				seen[id] = true
			}
		}
	}
	for _, dangerous := range []string{"bpf", "init_module", "kexec_load", "keyctl", "mount", "open_by_handle_at", "perf_event_open",
		"process_vm_writev", "ptrace", "setns", "unshare", "userfaultfd", "io_uring_setup", "mknodat", "symlinkat", "linkat"} {
		if seen[dangerous+"[]"] {
			t.Errorf("%s is allowed", dangerous)
		}
	}
}

// TestProfilesOfModes: the profiles of modes ebpf and iptables have one rule more than the usual profile, and are the
// same otherwise.
func TestProfilesOfModes(t *testing.T) {
	usual := readProfile(t)
	numbers := syscallNumbers(t, "amd64")
	for file, want := range map[string][]string{
		ebpfProfileFile:     {"bpf", "fstatfs", "open_by_handle_at"},
		iptablesProfileFile: {"access", "alarm", "getuid", "pidfd_open", "pidfd_send_signal", "pselect6", "wait4", "waitid"},
	} {
		other := readProfileFile(t, file)
		last := len(other.Syscalls) - 1
		if !reflect.DeepEqual(other.Syscalls[:last], usual.Syscalls) || !slices.Equal(other.Architectures, usual.Architectures) || other.DefaultErrnoRet != usual.DefaultErrnoRet {
			t.Errorf("%s is not %s with a rule behind it", file, profileFile)
		}
		more := other.Syscalls[last].Names
		if !slices.Equal(more, want) {
			t.Errorf("%s also has %v", file, more)
		}
		for _, name := range more {
			if _, known := numbers[name]; !known {
				t.Errorf("%s: no system call is named %s", file, name)
			}
		}
	}
}
