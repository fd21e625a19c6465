//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// edit replaces a text in a source file, which must have it exactly once. The file is given from the root of the
// repository, or after goroot from the root of the Go distribution.
type edit struct {
	file, from, to string
}

// variant is a build of Switchyard from sources that differ: another version of it, or a mutant, with an injected bug.
type variant struct {
	name, what string
	edits      []edit
	// added are further files of packages.
	added map[string]string
}

// builder builds the program and its variants.
type builder struct {
	// source is the root of the repository, dir where programs go.
	source, dir string
	built       map[string]string
	// ready is where programs are that need not be built, empty if they must be.
	ready string
}

func newBuilder(o *Options) *builder {
	return &builder{source: o.Source, dir: o.Dir, built: map[string]string{}, ready: o.Programs}
}

// program returns the path of a variant, nil being Switchyard as it is. It is built when it is first asked for. The files in the
// repository are left alone: the compiler is told to read others in their place (go build -overlay).
func (b *builder) program(v *variant) (string, error) {
	name := "switchyard"
	if v != nil {
		name += "-" + v.name
	}
	if path := b.built[name]; path != "" {
		return path, nil
	}
	if b.ready != "" {
		return filepath.Join(b.ready, name), nil
	}
	path := filepath.Join(b.dir, name)
	args := []string{"build", "-trimpath", "-ldflags", "-s -w", "-o", path}
	if v != nil {
		overlay, err := b.overlay(v)
		if err != nil {
			return "", fmt.Errorf("variant %s: %w", v.name, err)
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, "./cmd/switchyard")...)
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	err := asOthers(func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	b.built[name] = path
	return path, nil
}

const goroot = "GOROOT/"

func (b *builder) path(file string) (string, error) {
	if rest, ok := strings.CutPrefix(file, goroot); ok {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		return filepath.Join(strings.TrimSpace(string(root)), rest), err
	}
	return filepath.Abs(filepath.Join(b.source, file))
}

// overlay writes the files of a variant.
func (b *builder) overlay(v *variant) (string, error) {
	texts := map[string]string{}
	for _, e := range v.edits {
		if texts[e.file] == "" {
			path, err := b.path(e.file)
			if err != nil {
				return "", err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.from); n != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once: adapt the variant to the code", e.file, e.from, n)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.from, e.to, 1)
	}
	maps.Copy(texts, v.added)
	replace := map[string]string{}
	for file, text := range texts {
		path := filepath.Join(b.dir, "overlay-"+v.name, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		original, err := b.path(file)
		if err != nil {
			return "", err
		}
		replace[original] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.dir, "overlay-"+v.name+".json")
	return path, os.WriteFile(path, text, 0o600)
}

// next is Switchyard with another skeleton of rules: another version, which replaces the tables of the one before.
var next = &variant{name: "next", what: "a version with another skeleton of rules", edits: []edit{
	{"backend/nftables/internal/ruleset/skeleton.go", ` = "strays"`, ` = "` + nextChain + `"`},
}}

const nextChain = "strays-next"

// doomed kills itself soon after the beginning of a commit. It says when that begins and, if it comes so far, ends.
var doomed = &variant{name: "doomed", what: "kills itself while it commits", edits: []edit{
	{"internal/kernel/nft/conn_linux.go", "func (c *Conn) commit(msg []byte, ack uint32) error {\n", `func (c *Conn) commit(msg []byte, ack uint32) error {
	defer doom(msg)()
`},
}, added: map[string]string{"internal/kernel/nft/doom_linux.go": `package nft

import (
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// doom leaves alone what opens the dataplane, in which there is no element.
func doom(msg []byte) (ended func()) {
	elements := false
	_ = eachMessage(msg, func(m message) error {
		elements = elements || m.typ == subsystem|nftMsgNewSetElem || m.typ == subsystem|nftMsgDelSetElem
		return nil
	})
	if !elements {
		return func() {}
	}
	unix.Write(2, []byte("` + commitBegins + `\n"))
	go func() {
		time.Sleep(rand.N(4 * time.Millisecond))
		unix.Kill(unix.Getpid(), unix.SIGKILL)
	}()
	return func() { unix.Write(2, []byte("` + commitEnds + `\n")) }
}
`}}

const (
	commitBegins = "a commit begins"
	commitEnds   = "the commit has ended"
)

// faulty has a kernel that refuses one commit in five, and loses the answer to one in five of the others. Reading
// fails too, now and then. Operations that open the dataplane work: without them the process would end, and its
// supervisor would start it again.
var faulty = &variant{name: "faulty", what: "one netlink message in five fails", edits: []edit{
	{"internal/kernel/nft/conn_linux.go", "func (c *Conn) commit(msg []byte, ack uint32) error {\n", `func (c *Conn) commit(msg []byte, ack uint32) error {
	if err := injected(5); err != nil {
		return err
	}
	if err := c.commitTruly(msg, ack); err != nil {
		return err
	}
	return injected(5)
}

func (c *Conn) commitTruly(msg []byte, ack uint32) error {
`},
	{"internal/kernel/nft/conn_linux.go", "	var b Batch\n	b.seq = c.nextSeq() - 1\n", `	if err := injected(1000); err != nil {
		return err
	}
	var b Batch
	b.seq = c.nextSeq() - 1
`},
}, added: map[string]string{"internal/kernel/nft/injected_linux.go": `package nft

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var operations atomic.Int64

func injected(oneIn int) error {
	const opening = 10
	if operations.Add(1) <= opening || rand.IntN(oneIn) > 0 {
		return nil
	}
	errnos := []unix.Errno{unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EEXIST, unix.EPERM}
	return fmt.Errorf("injected: %w", errnos[rand.IntN(len(errnos))])
}
`}}

// jumpy has a wall clock that jumps twice a second, up to a year back and forth.
var jumpy = &variant{name: "jumpy", what: "the wall clock jumps twice a second, up to a year", edits: jumps(), added: map[string]string{
	"cmd/switchyard/year.go": `package main

import (
	"fmt"
	"os"
	"time"
)

func init() { fmt.Fprintln(os.Stderr, "` + theYearIs + `", time.Now().Year()) }
`}}

const theYearIs = "the year is"

// jumps edits the runtime of Go. On amd64 its clock is written in assembly, which gets another name.
func jumps() []edit {
	const jump = `
	jumps := [...]int64{0, 3600, -3600, 365 * 86400, -365 * 86400, 5}
	return sec + jumps[mono/5e8%6], nsec, mono
}
`
	const src = goroot + "src/runtime/"
	if runtime.GOARCH != "amd64" {
		return []edit{{src + "timestub.go", "\n	return sec, nsec, nanotime()\n}\n", "\n	mono = nanotime()" + jump}}
	}
	const signature = "() (sec int64, nsec int32, mono int64)"
	return []edit{
		{src + "time_linux_amd64.s", "TEXT time·now<ABIInternal>(SB)", "TEXT ·trueNow<ABIInternal>(SB)"},
		{src + "timeasm.go", "func time_now" + signature, "func trueNow" + signature + "\n\nfunc time_now" + signature +
			" {\n	sec, nsec, mono = trueNow()" + jump},
	}
}

// shared is Switchyard on a kernel before Linux 6.9, as far as tables go.
var shared = &variant{name: "shared", what: "finds a kernel that cannot keep others from changing tables", edits: []edit{cannotOwn}}

var cannotOwn = edit{"backend/nftables/nftables.go", "	if persistent {\n", "	if persistent = false; persistent {\n"}

// halted is the effect of a bug that breaks connections and makes the gap too long. misled is a wrong endpoint, and ownerless are tables
// that other programs can change.
func halted(k *kind, r *Result) bool {
	return r.Report.Lost+r.Report.Reset > 0 && r.Report.New.Ours > k.gap
}
func unrepaired(k *kind, r *Result) bool {
	return r.Report.Lost+r.Report.Reset > 0 && r.Report.New.Ours > k.repair
}
func misled(_ *kind, r *Result) bool    { return r.Report.WrongEndpoint > 0 }
func ownerless(_ *kind, r *Result) bool { return slices.Contains(r.Wrong, noOwner) }

// broken is what a process that ends with its connections must lead to.
func broken(_ *kind, r *Result) bool { return r.Report.Reset > 0 }

// severed is what a dataplane that ends connections must lead to, or one that loses their packets.
func severed(_ *kind, r *Result) bool { return r.Report.Lost+r.Report.Reset > 0 }

// mutant is a build with a bug that a scenario must notice.
type mutant struct {
	variant  *variant
	scenario string
	noticed  func(*kind, *Result) bool
	// modes are those that have the bug.
	modes []string
}

var mutants = onReleases(slices.Concat(mutantsOnNFT, mutantsOfTools, mutantsOfIPVS, mutantsOfRelay, mutantsOfShares))

// onReleases adds the scenario release, in which a process also replaces another one, for the mutants of scenario restart.
func onReleases(list []mutant) []mutant {
	for _, p := range list {
		if p.scenario == "restart" {
			p.scenario = "release"
			list = append(list, p)
		}
	}
	return list
}

var onNFT = []string{"nftables", "ebpf"}

// deletesFirst has a moment between a deletion and what comes in its place.
var deletesFirst = &variant{name: "delete-before-add", what: "deletes elements in one transaction and adds others in the next, ten milliseconds later", edits: []edit{
	{"backend/nftables/nftables.go", "	n, err := b.commitBatch(p.Write)\n", `	deleted, err := b.commitBatch(p.WriteDeletions)
	if err != nil {
		return 0, err
	}
	if deleted > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	n, err := b.commitBatch(p.Write)
`},
}, added: map[string]string{"backend/nftables/internal/ruleset/deletions.go": `package ruleset

import "github.com/switchyard-net/switchyard/internal/kernel/nft"

func (p *Plan) WriteDeletions(b *nft.Batch) {
	for _, s := range p.order {
		s.write(b, &s.del, b.DeleteElem)
		s.del = elements{}
	}
}
`}}

var mutantsOnNFT = []mutant{
	{&variant{name: "flush-on-start", what: "deletes its tables before it starts", edits: []edit{
		{"backend/nftables/nftables.go", "	b.guard.arm() // before the reading", `	for _, t := range ruleset.Tables() {
		var flush nft.Batch
		flush.DeleteTable(t)
		if !b.applied {
			_ = b.kernel.Commit(&flush)
		}
	}
	b.guard.arm() // before the reading`},
	}}, "restart", halted, onNFT},
	{deletesFirst, "rolling update", halted, onNFT},
	{deletesFirst, "balance", severed, onNFT},
	{&variant{name: "stale-affinity", what: "leaves endpoints that are gone where clients with affinity are remembered with them", edits: []edit{
		{"backend/nftables/internal/ruleset/plan.go", "import (\n", "import (\n\t\"encoding/binary\"\n"},
		{"backend/nftables/internal/ruleset/plan.go", "func (p *Plan) del(e element) {\n", "func (p *Plan) del(e element) {\n" +
			"	if e.set.kind == slots {\n		k := e.id()\n		if index := binary.NativeEndian.Uint32(k.key[frontendLen(k.family, k.set.space):]); index>>31 == 1 {\n			return\n		}\n	}\n"},
	}}, "rolling update", misled, onNFT},
	{&variant{name: "uncut", what: "leaves flows of datagrams with endpoints that are gone", edits: []edit{uncutFlows}}, "rolling update", misled, onNFT},
	{&variant{name: "blind", what: "looks once an hour whether somebody has changed its rules", edits: []edit{
		cannotOwn, {"backend/nftables/guard.go", "= 25 * time.Millisecond\n", "= time.Hour\n"},
	}}, "flush on an older kernel", unrepaired, onNFT},
	{&variant{name: "orphan", what: "leaves its tables to everybody although the kernel could keep others from them", edits: []edit{
		{"backend/nftables/nftables.go", "b.flags = nft.Owned | nft.Persistent\n", "b.flags = nft.Persistent\n"},
	}}, "flush", ownerless, onNFT},
}
