//go:build linux

package chaos

// nextTables is Switchyard with another skeleton of chains: another version, whose rules lead elsewhere.
var nextTables = &variant{name: "next-tables", what: "a version with another skeleton of chains", edits: []edit{
	{"backend/iptables/internal/rules/names.go", `Prefix + "GUARD-NODE-PORT"`, `"` + nextGuard + `"`},
}}

const nextGuard = "SWY-GUARD-NEXT"

// doomedTool kills itself soon after it has started a program that changes the tables. The program goes on without it.
var doomedTool = &variant{name: "doomed-tool", what: "kills itself while its program commits", edits: []edit{
	{"backend/iptables/tool_linux.go", "	_, err := t.run(ctx, f, \"restore\",", "	defer doom()()\n	_, err := t.run(ctx, f, \"restore\","},
}, added: map[string]string{"backend/iptables/doom_linux.go": `package iptables

import (
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

func doom() (ended func()) {
	unix.Write(2, []byte("` + commitBegins + `\n"))
	go func() {
		time.Sleep(rand.N(30 * time.Millisecond))
		unix.Kill(unix.Getpid(), unix.SIGKILL)
	}()
	return func() { unix.Write(2, []byte("` + commitEnds + `\n")) }
}
`}}

// faultyTool has programs that fail in one run of ten, before or after their work, and IP sets that refuse one change in forty. An update
// takes several of each, so that one in two fails. Reading also fails at times.
var faultyTool = &variant{name: "faulty-tool", what: "one run of its programs in ten fails", edits: []edit{
	{"backend/iptables/tool_linux.go", "func (t *tool) run(ctx context.Context, f state.Family, what string, input string, args ...string) ([]byte, error) {\n",
		`func (t *tool) run(ctx context.Context, f state.Family, what string, input string, args ...string) ([]byte, error) {
	oneIn := 100
	if what == "restore" {
		oneIn = 10
	}
	if err := injected(oneIn); err != nil {
		return nil, err
	}
	out, err := t.runTruly(ctx, f, what, input, args...)
	if err != nil {
		return nil, err
	}
	return out, injected(oneIn)
}

func (t *tool) runTruly(ctx context.Context, f state.Family, what string, input string, args ...string) ([]byte, error) {
`},
	{"backend/iptables/backend_linux.go", "	b.sets = conn\n", "	b.sets = faultySets{conn}\n"},
}, added: map[string]string{"backend/iptables/injected_linux.go": `package iptables

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
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

type faultySets struct{ *ipset.Conn }

func faulty(fn func() error) error {
	if err := injected(40); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	return injected(40)
}

func (s faultySets) Create(set ipset.Set) error { return faulty(func() error { return s.Conn.Create(set) }) }
func (s faultySets) Destroy(name string) error  { return faulty(func() error { return s.Conn.Destroy(name) }) }
func (s faultySets) Add(set ipset.Set, e []ipset.Element) error {
	return faulty(func() error { return s.Conn.Add(set, e) })
}
func (s faultySets) Delete(set ipset.Set, e []ipset.Element) error {
	return faulty(func() error { return s.Conn.Delete(set, e) })
}
`}}

var mutantsOfTools = []mutant{
	{&variant{name: "tools-flush-on-start", what: "deletes its chains and sets before it starts", edits: []edit{
		{"backend/iptables/backend_linux.go", "	for _, name := range u.Gone(b.names()) {\n", `	if b.node == nil {
		_, _ = b.clear(ctx, b.tool, func() error { return nil })
	}
	for _, name := range u.Gone(b.names()) {
`},
	}}, "restart", halted, []string{"iptables"}},
	{&variant{name: "tools-two-steps", what: "empties chains in one transaction and fills them in the next, ten milliseconds later", edits: []edit{
		{"backend/iptables/tool_linux.go", "	_, err := t.run(ctx, f, \"restore\",", `	var emptied strings.Builder
	for line := range strings.Lines(input) {
		if strings.HasPrefix(line, "*") || strings.HasPrefix(line, ":") || line == "COMMIT\n" {
			emptied.WriteString(line)
		}
	}
	if _, err := t.run(ctx, f, "restore", emptied.String(), "--noflush", "--wait", lockSeconds); err != nil {
		return err
	}
	time.Sleep(10 * time.Millisecond)
	_, err := t.run(ctx, f, "restore",`},
	}}, "rolling update", halted, []string{"iptables"}},
	{&variant{name: "tools-uncut", what: "leaves flows of datagrams with endpoints that are gone", edits: []edit{uncutFlows}}, "rolling update", misled, []string{"iptables"}},
	{&variant{name: "tools-blind", what: "never looks whether somebody has changed its tables", edits: []edit{
		{"backend/iptables/watch_linux.go", "	if w.expected == \"\" {\n", "	if true {\n"},
	}}, "flush", unrepaired, []string{"iptables"}},
}

// uncutFlows is the end of what deletes flows to endpoints that are gone.
var uncutFlows = edit{"kernel/conntrack/cutter.go", "func (c *Cutter) cut(ctx context.Context, all bool) (more bool, err error) {\n", `func (c *Cutter) cut(ctx context.Context, all bool) (more bool, err error) {
	if c != nil {
		c.takeNotes()
		return false, nil
	}
`}
