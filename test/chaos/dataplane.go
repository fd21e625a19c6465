//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// kind is what scenarios have to know of a dataplane.
type kind struct {
	// name is the name of the option, and mode the mode of the configuration.
	name, mode string
	// anyMode is set if the mode changes.
	anyMode bool
	// variant is the iptables variant that the node's hints ask for, empty for none.
	variant string
	// relays is set if connections end with the process, unless a next one takes them over, and carries if they may.
	relays, carries bool
	// gap is the longest gap of new connections. repair is the longest such gap after somebody has deleted all rules. echo is the longest gap
	// of requests on open connections.
	gap, repair, echo time.Duration
	// change is how long a change may take to arrive, at least, and cut how long flows of datagrams may be left uncut.
	change, cut time.Duration
	// slack is the least time after the mark in which other frontends may change, in scenarios that allow it. Two programs write the tables of
	// the two families. After a failure of the second one, everything is read before the next try.
	slack time.Duration
	// rest is how long only one state counts after a change.
	rest time.Duration
	// hashes is set if the dataplane chooses endpoints by hashes.
	hashes bool
	// excused is the largest share of the time in which nothing may be seen of the proxy. A relay that starts is itself what processors stand still for.
	excused float64
	// rate is the number of new connections a second, unless it is given.
	rate int
	// builds are the variants of the program that fit the dataplane, by their role in scenarios.
	builds map[role]*variant
	// skeleton finds in a listing of all rules that they are of the version that the role next is.
	skeleton string
}

// role is what a variant of the program is for.
type role string

const (
	// isNext is another version, and isDoomed kills itself while it commits. isFaulty has a kernel that refuses, and isShared has a kernel
	// that cannot keep other programs from changing tables.
	isNext   role = "next"
	isDoomed role = "doomed"
	isFaulty role = "faulty"
	isShared role = "shared"
)

// kinds are all dataplanes that scenarios can run with.
var kinds = func() []kind {
	usual := kind{
		gap: usualGap, repair: repairGap, echo: echoGap, change: usualChange, rest: 100 * time.Millisecond, hashes: true, excused: mostExcused, rate: 1200,
		// Those above nftables have its builds: what fails there fails for them.
		builds: map[role]*variant{isNext: next, isDoomed: doomed, isFaulty: faulty, isShared: shared}, skeleton: nextChain,
	}
	ofTools := usual
	ofTools.mode, ofTools.repair, ofTools.hashes = "iptables", toolRepair, false
	ofTools.change, ofTools.cut, ofTools.slack, ofTools.rest = toolChange, toolCut, toolSlack, 500*time.Millisecond
	ofTools.builds, ofTools.skeleton = map[role]*variant{isNext: nextTables, isDoomed: doomedTool, isFaulty: faultyTool}, nextGuard
	relay := usual
	relay.mode, relay.relays, relay.carries, relay.rate, relay.gap, relay.echo, relay.excused = "userspace", true, true, 400, relayGap, relayEcho, 0.6
	relay.builds = map[role]*variant{isNext: next, isDoomed: doomedSuccessor, isFaulty: faulty, isShared: shared}
	named := func(k kind, name, mode, variant string) kind {
		k.name, k.mode, k.variant = name, mode, variant
		return k
	}
	return []kind{
		named(usual, "nftables", "nftables", ""), named(usual, "ebpf", "ebpf", ""), named(usual, "ipvs", "ipvs", ""),
		named(ofTools, "iptables", "iptables", ""), named(ofTools, "iptables-nft", "iptables", "nft"), named(ofTools, "iptables-legacy", "iptables", "legacy"),
		named(relay, "userspace", "userspace", ""),
	}
}()

// switching returns the limits for a process that goes from one dataplane to another: the limits of the one that needs more.
func (k *kind) switching() *kind {
	s := *k
	s.anyMode, s.relays, s.carries, s.rest = true, false, true, 300*time.Millisecond
	s.gap, s.echo, s.cut, s.change, s.excused = relayGap, relayEcho, toolCut, toolChange, 0.6
	return &s
}

// Dataplanes lists the names of all dataplanes that scenarios can run with.
func Dataplanes() []string {
	var names []string
	for i := range kinds {
		names = append(names, kinds[i].name)
	}
	return names
}

func kindOf(name string) (*kind, error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return nil, fmt.Errorf("dataplane %s: use one of %s", name, strings.Join(Dataplanes(), ", "))
	}
	return &kinds[i], nil
}

// slowRepair is how long a repair may take at least where only the counts are judged: twenty times as long as elsewhere.
const slowRepair = 20 * repairGap

// kind returns the limits of the dataplane on this machine.
func (o *Options) kind() (*kind, error) {
	k, err := kindOf(o.Dataplane)
	if err != nil || !o.CountsOnly {
		return k, err
	}
	slow := *k
	slow.repair = max(slow.repair, slowRepair)
	return &slow, nil
}

// dataplane is the dataplane of the proxy under test.
type dataplane struct {
	*kind
	// fields are the fields of a configuration file that has the mode.
	fields map[string]string
	// file is a configuration file with these fields, empty if none is needed.
	file string
	// without is set for processes that start in mode nftables all the same.
	without bool
	close   func() error
}

// newDataplane returns a dataplane for the node under test.
func newDataplane(k *kind, dir string, l *topology.Lab) (*dataplane, error) {
	d := &dataplane{kind: k, fields: map[string]string{"mode": k.mode}, close: func() error { return nil }}
	switch k.mode {
	case "nftables":
		if !k.anyMode {
			return d, nil
		}
	case "ebpf":
		if err := d.hook(dir, l); err != nil {
			return nil, err
		}
	case "iptables":
		if err := d.hint(l); err != nil {
			return nil, err
		}
	}
	if k.anyMode && d.fields["ebpf"] == "" {
		if err := d.hook(dir, l); err != nil {
			return nil, err
		}
	}
	d.file = filepath.Join(dir, "dataplane.yaml")
	fields := map[string]string{"linux": noNodeSetup}
	maps.Copy(fields, d.fields)
	if err := os.WriteFile(d.file, configOf(fields), 0o600); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// hook lets processes know which network namespaces are the node's.
func (d *dataplane) hook(dir string, l *topology.Lab) error {
	namespaces, err := sockethooks.Namespaces(sockethooks.Of(l))
	if err != nil {
		return err
	}
	path, unpin, err := sockethooks.Pin(namespaces, dir)
	if err != nil {
		return errors.Join(err, namespaces.Close())
	}
	d.close = func() error { return errors.Join(unpin(), namespaces.Close()) }
	d.fields["ebpf"] = "{namespaceMap: " + path + "}"
	return nil
}

// hint leaves the kubelet's hint for a variant of iptables.
func (d *dataplane) hint(l *topology.Lab) error {
	if d.variant == "" {
		return nil
	}
	_, err := onNode(l, "", "iptables-"+d.variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	return err
}

// onNode runs a program on the node under test.
func onNode(l *topology.Lab, input, name string, args ...string) (out []byte, err error) {
	err = l.Node().Do(func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return err
	})
	return out, err
}

// flush deletes all rules of the node's dataplane, as another program would.
func (k *kind) flush(l *topology.Lab) error {
	if k.mode != "iptables" || k.variant != "legacy" {
		_, err := onNode(l, "", "nft", "flush", "ruleset")
		return err
	}
	for _, program := range []string{"iptables-legacy-restore", "ip6tables-legacy-restore"} {
		if _, err := onNode(l, "*nat\nCOMMIT\n*filter\nCOMMIT\n", program); err != nil {
			return err
		}
	}
	return nil
}

// chains lists all chains of the dataplane.
func (k *kind) chains(l *topology.Lab) (string, error) {
	program, args := "nft", []string{"list", "chains"}
	if k.mode == "iptables" && k.variant == "legacy" {
		program, args = "iptables-legacy-save", nil
	}
	out, err := onNode(l, "", program, args...)
	return string(out), err
}

// args are the arguments of a process that has no configuration file of its own.
func (d *dataplane) args() []string {
	if d.file == "" || d.without {
		return nil
	}
	return []string{"--config", d.file}
}
