package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

// tool are the programs of one variant of iptables.
type tool struct {
	variant Variant
	inside  *namespace.Namespace
	paths   map[string]string
	// onProgress is called about once a second while a program uses the processor. It may be nil.
	onProgress func()
}

// install says how to get the programs.
const install = "install the package iptables, which has both variants, or use an image that has it"

// newTool looks for the programs of a variant.
func newTool(v Variant, inside *namespace.Namespace) (*tool, error) {
	t := &tool{variant: v, inside: inside, paths: map[string]string{}}
	for _, f := range families {
		for _, what := range []string{"save", "restore"} {
			name := t.name(f, what)
			path, err := exec.LookPath(name)
			if err != nil {
				return nil, fmt.Errorf("the program %s is missing: %s: %w", name, install, err)
			}
			t.paths[name] = path
		}
	}
	return t, nil
}

var families = []state.Family{state.IPv4, state.IPv6}

// name returns what a program is called.
func (t *tool) name(f state.Family, what string) string {
	family := "iptables"
	if f == state.IPv6 {
		family = "ip6tables"
	}
	return fmt.Sprintf("%s-%s-%s", family, t.variant, what)
}

// toolTimeout is how long a program may take. It waits for its lock, and for the kernel, which copies a whole table.
const toolTimeout = 5 * time.Minute

// lockSeconds is how long a program waits for others that have the lock of ip_tables.
const lockSeconds = "30"

// run runs a program and returns its output.
func (t *tool) run(ctx context.Context, f state.Family, what string, input string, args ...string) ([]byte, error) {
	name := t.name(f, what)
	// A program that is killed while it waits for the kernel leaves its table as it was or as it is to be. So the end of ctx, when the process
	// ends, does not cut it short.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.paths[name], args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	err := t.inside.Do(cmd.Start)
	if err == nil {
		err = t.wait(cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, firstLines(complaint.String()))
	}
	return out.Bytes(), nil
}

// progressPeriod is the time between two looks at whether a program gets on.
const progressPeriod = time.Second

// wait waits for the end of a program. Until then it tells whenever the program has used the processor.
func (t *tool) wait(cmd *exec.Cmd) error {
	if t.onProgress == nil {
		return cmd.Wait()
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	look := time.NewTicker(progressPeriod)
	defer look.Stop()
	var used uint64
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
			if now := processorTimeOf(cmd.Process.Pid); now > used {
				used = now
				t.onProgress()
			}
		}
	}
}

// processorTimeOf returns how long a process has used the processor, in clock ticks, 0 if it has ended: utime and stime of proc_pid_stat(5).
func processorTimeOf(pid int) (ticks uint64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the name before may have spaces
	const utime, stime = 11, 12
	for _, i := range []int{utime, stime} {
		if i < len(fields) {
			n, err := strconv.ParseUint(string(fields[i]), 10, 64)
			if err != nil {
				return 0
			}
			ticks += n
		}
	}
	return ticks
}

// firstLines shortens what a program complains of.
func firstLines(s string) string {
	const most = 500
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// save returns what a table has.
func (t *tool) save(ctx context.Context, f state.Family, table rules.Table) (string, error) {
	out, err := t.run(ctx, f, "save", "", "-t", string(table))
	return string(out), err
}

// restore changes tables.
func (t *tool) restore(ctx context.Context, f state.Family, input string) error {
	_, err := t.run(ctx, f, "restore", input, "--noflush", "--wait", lockSeconds)
	return err
}

// Available returns why the calling thread's network namespace can have no dataplane, or nil if it can. The reasons are missing programs
// and a kernel without IP sets.
func Available() error {
	var missing []error
	for _, v := range []Variant{NFT, Legacy} {
		if _, err := newTool(v, nil); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) == 2 {
		return fmt.Errorf("iptables: %w", errors.Join(missing...))
	}
	conn, err := ipset.Open()
	if err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	defer conn.Close()
	if err := conn.Check(); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	return nil
}

// pick returns the variant to use: that which is asked for, else the one that has rules already. It goes by the same signs as the wrappers that
// distributions of Kubernetes have: the kubelet's hints, then which of the two has more rules.
func pick(ctx context.Context, v Variant, inside *namespace.Namespace) (*tool, error) {
	if v != Automatic {
		return newTool(v, inside)
	}
	nft, err := newTool(NFT, inside)
	legacy, legacyErr := newTool(Legacy, inside)
	switch {
	case err != nil && legacyErr != nil:
		return nil, errors.Join(err, legacyErr)
	case err != nil:
		return legacy, nil
	case legacyErr != nil:
		return nft, nil
	}
	ofNFT, hint, err := nft.signs(ctx)
	if err != nil || hint {
		return nft, err
	}
	ofLegacy, hint, err := legacy.signs(ctx)
	if err != nil {
		return nft, nil // this kernel has no ip_tables
	}
	if hint || ofLegacy > ofNFT {
		return legacy, nil
	}
	return nft, nil
}

// signs returns how many rules the variant has, and whether the kubelet left a hint that it is the one to use.
func (t *tool) signs(ctx context.Context) (count int, hint bool, err error) {
	for _, f := range families {
		out, err := t.run(ctx, f, "save", "") // without a table, those that exist
		if err != nil {
			return 0, false, err
		}
		for line := range bytes.Lines(out) {
			switch {
			case bytes.HasPrefix(line, []byte("-A ")):
				count++
			case bytes.HasPrefix(line, []byte(":KUBE-IPTABLES-HINT ")), bytes.HasPrefix(line, []byte(":KUBE-KUBELET-CANARY ")):
				hint = true
			}
		}
	}
	return count, hint, nil
}
