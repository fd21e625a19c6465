package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// AttackOptions specify what [Attacks] measures.
type AttackOptions struct {
	// Program is the path of the program under attack, and Dataplane its mode.
	Program, Dataplane string
	// Only is the name of the one attack that is measured in addition to the baseline. Default: all.
	Only string
	// Changes and Connects are how many of a victim's are measured under each attack, unless that takes longer than For. Default: 60, 250, 20 s.
	Changes, Connects int
	For               time.Duration
	// During is "upgrade", "switch" or empty. With "upgrade", another process takes over under each attack. With "switch", another dataplane takes over, and
	// then the first one again.
	During string
	// Memory is the limit of the program's memory in MiB, together with the kernel's for it. Default: 1000, as deployed.
	Memory int
}

const (
	// attackedServices is how many ordinary Services a node has in addition to the Services of the victims and of the
	// attack.
	attackedServices = 200
	// leastAttack is how long each attack is measured at least: some need a while to have an effect.
	leastAttack = 5 * time.Second
	// mostLatency is how long a victim waits, for a change or for a connection.
	mostLatency = 10 * time.Second
	// strictChange is how long other tenants' changes and other programs' commits may take in mode nftables, 99 of 100.
	strictChange = 10 * time.Millisecond
)

// attackRow is what victims have noticed of an attack.
type attackRow struct {
	attack            string
	changes, connects []time.Duration
	// commits are commits of another program to nf_tables.
	commits []time.Duration
	// late changes did not arrive. Lost connections had no answer, and wrong connections had another server's answer.
	late, lost, wrong int
	// resident is the program's memory in bytes. all is the memory that its cgroup counts, with the kernel's for it, and 0 if that is unknown.
	resident, all, descriptors uint64
	// ended is why the program has ended, empty if it has not.
	ended string
}

// Attacks has attackers use all their permissions against the program on a node of a topology, and measures the effects
// on others. It writes a table with a row for each attack. If strict is set, the error names the missed targets.
func Attacks(ctx context.Context, out io.Writer, o AttackOptions, strict bool) error {
	setDefault(&o.Changes, 60)
	setDefault(&o.Connects, 250)
	setDefault(&o.For, 20*time.Second)
	setDefault(&o.Memory, 1000)
	if err := allowFiles(1 << 14); err != nil {
		return err
	}
	if o.During != "" && o.During != "upgrade" && o.During != "switch" {
		return fmt.Errorf("--during: %q is neither upgrade nor switch", o.During)
	}
	load, err := loadAverage()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d CPUs, load average before: %s\n", runtime.NumCPU(), load)
	var rows []*attackRow
	for _, a := range attacks {
		if a.start != nil && o.Only != "" && o.Only != a.name {
			continue
		}
		row, err := o.measure(ctx, &a)
		if err != nil {
			return errors.Join(fmt.Errorf("attack %s: %w", a.name, err), writeAttacks(out, &o, rows))
		}
		rows = append(rows, row)
	}
	return errors.Join(writeAttacks(out, &o, rows), missedAttacks(&o, rows, strict))
}

func writeAttacks(out io.Writer, o *AttackOptions, rows []*attackRow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\tchanges\tp50 ms\tp99 ms\tlate\tcommit p99 ms\tconnects\tp50 ms\tp99 ms\tlost\twrong\tRSS MiB\twith kernel MiB\tdescriptors\tended\t\n", o.Dataplane)
	ms := func(d []time.Duration, p float64) string {
		if len(d) == 0 {
			return "-"
		}
		return readable(in("ms", Percentile(d, p)))
	}
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%d\t%d\t%.0f\t%.0f\t%d\t%s\t\n", r.attack, len(r.changes), ms(r.changes, 50), ms(r.changes, 99), r.late,
			ms(r.commits, 99), len(r.connects), ms(r.connects, 50), ms(r.connects, 99), r.lost, r.wrong, MiB(r.resident), MiB(r.all), r.descriptors, r.ended)
	}
	return w.Flush()
}

func missedAttacks(o *AttackOptions, rows []*attackRow, strict bool) error {
	var missed []string
	for _, r := range rows {
		for _, of := range []struct {
			what string
			took []time.Duration
		}{{"other tenants' changes", r.changes}, {"other programs' commits", r.commits}} {
			if p99 := Percentile(of.took, 99); o.Dataplane == "nftables" && p99 > strictChange {
				missed = append(missed, fmt.Sprintf("%s: %s take %v (p99), at most %v", r.attack, of.what, p99, strictChange))
			}
		}
		if r.late+r.lost+r.wrong > 0 || r.ended != "" {
			missed = append(missed, fmt.Sprintf("%s: %d changes of other tenants are late, %d of their connections lost, %d wrong; %s", r.attack, r.late, r.lost, r.wrong, r.ended))
		}
	}
	if !strict || len(missed) == 0 {
		return nil
	}
	return errors.New(strings.Join(missed, "; "))
}

// attackedNode is a node with the program under attack.
type attackedNode struct {
	*topology.Lab
	// cgroup is where the program runs, empty if there is no cgroup with a limit of memory. ebpf is the section of the configuration.
	dir, cgroup, ebpf string
	api               *kubeapi.Server
	running           atomic.Pointer[attackedProcess]
	closers
	// client is the victims' pod, server the pod that serves them, and attacker the attack's pod.
	client, server, attacker *topology.Host
	// tasks are goroutines of the attack, which end with it.
	tasks sync.WaitGroup
}

// attackedProcess is a running program.
type attackedProcess struct {
	*exec.Cmd
	exited chan struct{} // closed when it has ended
}

// The victims' Services: one whose endpoint changes its port, which says its number, and one that stays as it is.
var (
	changing = attackService{namespace: "victims", name: "changing", ip: netip.MustParseAddr("10.96.0.10"), ports: 1}
	steady   = attackService{namespace: "victims", name: "steady", ip: netip.MustParseAddr("10.96.0.11"), ports: 1}
)

// The ports of a pod that serves: victimPorts of them from victimPort on.
const victimPort, victimPorts = 9000, 16

func (o *AttackOptions) measure(ctx context.Context, a *attack) (row *attackRow, err error) {
	n, err := o.newAttackedNode(ctx, a)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	defer n.tasks.Wait()
	defer stop()
	victim := n.server.Addrs[0]
	objects := append(append(changing.objects([]netip.Addr{victim}, victimPort), steady.objects([]netip.Addr{victim}, victimPort)...), nodeObjects(n.Lab)...)
	for i := range attackedServices {
		s := attackService{namespace: "others", name: fmt.Sprint("other-", i), ip: nth4("10.96.1.0", i), ports: 1}
		objects = append(objects, s.objects([]netip.Addr{victim}, victimPort)...)
	}
	if err := n.api.Put(objects); err != nil {
		return nil, err
	}
	for began := time.Now(); n.connect(ctx, steady, time.Second).Outcome != topology.Answered; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			return nil, fmt.Errorf("nothing is served a minute after the start:\n%s", n.log())
		}
	}
	row = &attackRow{attack: a.name}
	watching, ended := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { n.watch(watching, row) })
	defer watchers.Wait()
	defer ended()
	if a.start != nil {
		if err := a.start(ctx, n); err != nil {
			return nil, err
		}
	}
	var during, committing sync.WaitGroup
	var replaced, committed error
	during.Go(func() { replaced = o.replace(ctx, n, a.fields) })
	committing.Go(func() { committed = n.commit(watching, row) })
	err = o.victims(ctx, n, row)
	during.Wait()
	ended()
	committing.Wait()
	select {
	case <-n.running.Load().exited:
		lines := strings.Split(strings.TrimSpace(n.log()), "\n")
		row.ended = fmt.Sprintf("%v: %s", n.running.Load().ProcessState, lines[len(lines)-1])
	default:
	}
	return row, errors.Join(err, replaced, committed)
}

// replace lets something else take over in the middle of an attack, if it is to be.
func (o *AttackOptions) replace(ctx context.Context, n *attackedNode, fields map[string]string) error {
	var steps []func() error
	switch o.During {
	case "upgrade":
		steps = append(steps, func() error {
			p := n.running.Load()
			if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return err
			}
			if o.Dataplane != "userspace" { // one that relays ends when the next one has taken over
				<-p.exited
			}
			return n.start(o)
		})
	case "switch":
		other := "userspace"
		if o.Dataplane == other {
			other = "nftables"
		}
		for _, mode := range []string{other, o.Dataplane} {
			steps = append(steps, func() error { return n.configure(mode, fields) })
		}
	}
	for _, step := range steps {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leastAttack / 3):
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// victims measures the effects on the victims.
func (o *AttackOptions) victims(ctx context.Context, n *attackedNode, row *attackRow) error {
	began := time.Now()
	var changed atomic.Bool
	var connecting sync.WaitGroup
	connecting.Go(func() {
		for ctx.Err() == nil && time.Since(began) < o.For && (!changed.Load() || len(row.connects) < o.Connects) {
			answer := n.connect(ctx, steady, mostLatency)
			switch {
			case answer.Outcome != topology.Answered:
				row.lost++
			case answer.Server != "0":
				row.wrong++
			}
			row.connects = append(row.connects, answer.Latency)
			time.Sleep(10 * time.Millisecond)
		}
	})
	defer connecting.Wait()
	defer changed.Store(true)
	for i := 1; ctx.Err() == nil && time.Since(began) < o.For && (len(row.changes) < o.Changes || time.Since(began) < leastAttack); i++ {
		want := strconv.Itoa(i % victimPorts)
		if err := n.api.Put(changing.slices([]netip.Addr{n.server.Addrs[0]}, int32(victimPort+i%victimPorts))); err != nil {
			return err
		}
		sent := time.Now()
		for n.connect(ctx, changing, time.Second).Server != want {
			if time.Since(sent) > mostLatency {
				row.late++
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		row.changes = append(row.changes, time.Since(sent))
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// commit makes commits of another program until ctx ends, and notes how long each took from the time at which it was due. The kernel takes one commit
// at a time.
func (n *attackedNode) commit(ctx context.Context, row *attackRow) (err error) {
	var conn *nft.Conn
	if err := n.Node().Do(func() (err error) { conn, err = nft.Dial(); return err }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for due := time.Now(); ctx.Err() == nil; due = due.Add(10 * time.Millisecond) {
		time.Sleep(time.Until(due))
		var batch nft.Batch
		batch.AddTable(nft.Table{Family: nft.IPv4, Name: "elsewhere"})
		if err := conn.Commit(&batch); err != nil {
			return err
		}
		row.commits = append(row.commits, time.Since(due))
	}
	return nil
}

// connect has a victim connect to a Service.
func (n *attackedNode) connect(ctx context.Context, s attackService, timeout time.Duration) topology.Answer {
	return n.client.Probe(ctx, state.TCP, netip.AddrPortFrom(s.ip, 80), topology.ProbeOptions{Timeout: timeout})
}

// watch notes the most memory and descriptors that the program has.
func (n *attackedNode) watch(ctx context.Context, row *attackRow) {
	for ctx.Err() == nil {
		pid := n.running.Load().Process.Pid
		if rss, _, err := residentMemory(pid); err == nil {
			row.resident = max(row.resident, rss)
		}
		// Since Linux 6.2 the size of the directory is the number of descriptors.
		if fds, err := os.Stat(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
			row.descriptors = max(row.descriptors, uint64(fds.Size()))
		}
		for _, name := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
			text, err := os.ReadFile(filepath.Join(n.cgroup, name))
			if used, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && parseErr == nil {
				row.all = max(row.all, used)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *attackedNode) log() string {
	text, err := os.ReadFile(filepath.Join(n.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4096):])
}

func (o *AttackOptions) newAttackedNode(ctx context.Context, a *attack) (_ *attackedNode, err error) {
	n := &attackedNode{api: kubeapi.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.dir, err = os.MkdirTemp("", "switchyard-attacks-"); err != nil {
		return nil, err
	}
	n.add(func() error { return os.RemoveAll(n.dir) })
	if n.Lab, err = topology.New(ctx, topology.Options{}); err != nil {
		return nil, err
	}
	n.add(n.Lab.Close)
	n.ebpf = "{}"
	if o.Dataplane == "ebpf" {
		namespaces, err := sockethooks.Namespaces(sockethooks.Of(n.Lab))
		if err != nil {
			return nil, err
		}
		n.add(namespaces.Close)
		path, unpin, err := sockethooks.Pin(namespaces, n.dir)
		if err != nil {
			return nil, err
		}
		n.add(unpin)
		n.ebpf = "{namespaceMap: " + path + "}"
	}
	for name, pod := range map[string]**topology.Host{"client": &n.client, "server": &n.server, "attacker": &n.attacker} {
		if *pod, err = n.AddPod(topology.PodOptions{Name: name}); err != nil {
			return nil, err
		}
	}
	for i := range victimPorts {
		for _, h := range []*topology.Host{n.server, n.attacker} {
			if err := h.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, uint16(victimPort+i)), strconv.Itoa(i)); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(n.serveAPI(), n.limitMemory(o.Memory), n.configure(o.Dataplane, a.fields)); err != nil {
		return nil, err
	}
	return n, n.start(o)
}

const attackedAPI = "127.0.0.1:8001"

func (n *attackedNode) serveAPI() error {
	return n.Node().Do(func() error {
		l, err := net.Listen("tcp", attackedAPI)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: n.api}
		n.add(server.Close)
		go func() { _ = server.Serve(l) }()
		return nil
	})
}

// configure writes the program's configuration file, which it follows.
func (n *attackedNode) configure(mode string, fields map[string]string) error {
	var config strings.Builder
	config.WriteString("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nhostnameOverride: node\nconfigHardFail: false\n" +
		"clientConnection: {contentType: application/json}\ndetectLocal: {clusterCIDRs: [10.244.0.0/16]}\n" +
		"linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\nadminBindAddress: none\n" +
		"mode: " + mode + "\nebpf: " + n.ebpf + "\n")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		config.WriteString(name + ": " + fields[name] + "\n")
	}
	if err := os.WriteFile(n.configPath()+"~", []byte(config.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(n.configPath()+"~", n.configPath())
}

func (n *attackedNode) configPath() string { return filepath.Join(n.dir, "config.yaml") }

// limitMemory makes a cgroup for the program, if it may.
func (n *attackedNode) limitMemory(mib int) error {
	group, maximum := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err == nil {
		group, maximum = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir := filepath.Join(group, filepath.Base(n.dir))
	if os.Mkdir(dir, 0o755) != nil {
		return nil
	}
	n.add(func() error { return emptyCgroup(dir) })
	if os.WriteFile(filepath.Join(dir, maximum), []byte(strconv.Itoa(mib<<20)), 0) == nil {
		n.cgroup = dir
	}
	return nil
}

// emptyCgroup removes a cgroup, in which tools may be left that the program has started.
func emptyCgroup(dir string) (err error) {
	for range 1000 {
		if err = os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
			return err
		}
		left, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(left)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// start starts the program, which runs until it is killed when the node is closed.
func (n *attackedNode) start(o *AttackOptions) error {
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	join := ""
	if n.cgroup != "" {
		join = "echo $$ >" + n.cgroup + "/cgroup.procs && "
	}
	p := &attackedProcess{exec.Command("sh", "-c", join+`exec "$0" "$@"`, o.Program, "proxy", "--config", n.configPath(), "--master", "http://"+attackedAPI), make(chan struct{})}
	p.Stdout, p.Stderr = log, log
	if err := n.Node().Do(p.Start); err != nil {
		return err
	}
	go func() {
		_ = p.Wait()
		close(p.exited)
	}()
	n.running.Store(p)
	n.add(func() error {
		err := p.Process.Kill()
		<-p.exited
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	})
	return nil
}
