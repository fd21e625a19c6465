package leftovers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// node is a network namespace to make and look at rules in.
type node struct {
	*testing.T
	ns *netns.NS
}

// newNode skips the test if one of the tools is missing.
func newNode(t *testing.T, tools ...string) *node {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: %v", tool, err)
		}
	}
	ns := netnstest.New(t)
	return &node{t, ns}
}

// run runs a command inside, with an input, and returns its output without comments.
func (n *node) run(input string, command ...string) string {
	n.Helper()
	if strings.HasSuffix(command[0], "-legacy-restore") { // the lock of ip_tables is one for all network namespaces
		command = append(slices.Clone(command), "--wait")
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(input)
	var out strings.Builder
	for line := range strings.Lines(netnstest.Output(n, n.ns, cmd)) {
		if !strings.HasPrefix(line, "#") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// remove removes what Find finds before, which changes nothing.
func (n *node) remove() (items []Item) {
	n.Helper()
	var found []Item
	rules := n.run("", "nft", "-a", "list", "ruleset")
	err := n.ns.Do(func() (err error) { found, err = Find(n.Context()); return err })
	if err != nil {
		n.Fatal(err)
	}
	n.same("to look for leftovers", rules, n.run("", "nft", "-a", "list", "ruleset"))
	err = n.ns.Do(func() (err error) { items, err = Remove(n.Context()); return err })
	if err != nil {
		n.Fatal(err)
	}
	if text(found) != text(items) {
		n.Errorf("found %s, removed %s", text(found), text(items))
	}
	return items
}

// gone checks that nothing is left.
func (n *node) gone() {
	n.Helper()
	if again := n.remove(); again != nil {
		n.Errorf("removed the second time: %v", again)
	}
}

// same compares two outputs, and shows the first line that differs.
func (n *node) same(what, before, after string) {
	n.Helper()
	if before == after {
		return
	}
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n.Fatalf("%s: line %d was\n%s\nand is\n%s", what, i+1, b[i], a[i])
		}
	}
	n.Fatalf("%s: %d lines became %d", what, len(b), len(a))
}

func total(items []Item, k Kind) (count int) {
	for _, i := range items {
		if i.Kind == k {
			count += len(i.Names)
		}
	}
	return count
}

// variants are the programs of iptables, which share no tables.
var variants = []struct {
	name   string
	prefix string
	v6     bool
}{
	{"iptables-nft", "iptables-nft", false},
	{"ip6tables-nft", "ip6tables-nft", true},
	{"iptables-legacy", "iptables-legacy", false},
	{"ip6tables-legacy", "ip6tables-legacy", true},
}

func TestIPTablesMode(t *testing.T) {
	const services = 400
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			n := newNode(t, v.prefix+"-restore", v.prefix+"-save", "nft")
			n.run(others(v.v6), v.prefix+"-restore", "-c")
			save := func() string { return n.run("", v.prefix+"-save", "-c") + n.run("", "nft", "-a", "list", "ruleset") }
			before := save()
			if removed := n.remove(); removed != nil {
				t.Fatalf("removed from the rules of others: %v", removed)
			}
			n.same("rules of others, nothing to remove", before, save())

			n.run(iptablesMode(services, v.v6), v.prefix+"-restore", "--noflush")
			n.run(policies, v.prefix+"-restore", "--noflush", "--counters")
			with := save()
			chains := strings.Count(with, "\n:KUBE-") - strings.Count(before, "\n:KUBE-")
			removed := n.remove()
			if total(removed, Chains) != chains || total(removed, Jumps) != 10 || chains < 3*services/4 {
				t.Errorf("removed %d chains and %d jumps, want %d and 10", total(removed, Chains), total(removed, Jumps), chains)
			}
			n.same("rules of others", before, save())
			n.gone()
			n.same("rules of others, the second time", before, save())
		})
	}
}

// TestRulesOfOthersLeadThere has rules that somebody else made lead to chains of kube-proxy. They stay as they are, and so do
// the chains; only the mark is still set.
func TestRulesOfOthersLeadThere(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			n := newNode(t, v.prefix+"-restore", v.prefix+"-save")
			n.run(others(v.v6), v.prefix+"-restore")
			n.run(iptablesMode(20, v.v6), v.prefix+"-restore", "--noflush")
			n.run(`*nat
:mine - [0:0]
-A PREROUTING -p udp -j KUBE-MARK-MASQ
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A mine -g KUBE-SERVICES
COMMIT
`, v.prefix+"-restore", "--noflush")
			n.remove()
			var kube []string
			for line := range strings.Lines(n.run("", v.prefix+"-save", "-t", "nat")) {
				if strings.Contains(line, "KUBE-MARK-MASQ") || strings.Contains(line, "KUBE-SERVICES") ||
					strings.Contains(line, "KUBE-SEP-") || strings.Contains(line, "KUBE-POSTROUTING") {
					kube = append(kube, strings.TrimSpace(line))
				}
			}
			want := []string{
				":KUBE-MARK-MASQ - [0:0]", ":KUBE-SERVICES - [0:0]",
				"-A PREROUTING -p udp -j KUBE-MARK-MASQ", "-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ",
				"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000", "-A mine -g KUBE-SERVICES",
			}
			slices.Sort(kube)
			slices.Sort(want)
			n.same("what is left of kube-proxy", strings.Join(want, "\n"), strings.Join(kube, "\n"))
			n.gone()
		})
	}
}

func TestIPVSMode(t *testing.T) {
	for _, v := range variants {
		if v.v6 {
			continue // the sets of the rules are for IPv4
		}
		t.Run(v.name, func(t *testing.T) {
			n := newNode(t, v.prefix+"-restore", v.prefix+"-save", "ipset")
			n.run(otherSets, "ipset", "restore")
			n.run(others(false), v.prefix+"-restore", "-c")
			save := func() string { return n.run("", v.prefix+"-save", "-c") + n.run("", "ipset", "save") }
			before := save()
			n.run(ipvsModeSets, "ipset", "restore")
			n.run(ipvsMode, v.prefix+"-restore", "--noflush")
			n.run(policies, v.prefix+"-restore", "--noflush", "--counters")
			removed := n.remove()
			if total(removed, Chains) != 11 || total(removed, Jumps) != 8 || total(removed, IPSets) != 7 {
				t.Errorf("removed %v, want 11 chains, 8 jumps and 7 ipsets", removed)
			}
			n.same("rules and sets of others", before, save())
			n.gone()
		})
	}
}

// TestSetInUse has a rule of somebody else use a set of kube-proxy: it is left, with an error that names it, and the rest goes.
func TestSetInUse(t *testing.T) {
	n := newNode(t, "iptables-nft-restore", "ipset")
	n.run(ipvsModeSets, "ipset", "restore")
	n.run("*filter\n-A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n", "iptables-nft-restore")
	var removed []Item
	err := n.ns.Do(func() (err error) { removed, err = Remove(n.Context()); return err })
	if err == nil || !strings.Contains(err.Error(), "ipset KUBE-CLUSTER-IP: ") || strings.Contains(err.Error(), "LOAD-BALANCER") {
		t.Errorf("error: %v, want one about KUBE-CLUSTER-IP", err)
	}
	if total(removed, IPSets) != 6 {
		t.Errorf("removed %v, want 6 sets", removed)
	}
}

// TestSetLetGo has a set that is in use for a moment longer, as it is by rules of nf_tables that were just deleted.
func TestSetLetGo(t *testing.T) {
	n := newNode(t, "iptables-nft-restore", "ipset", "nft")
	n.run(ipvsModeSets, "ipset", "restore")
	n.run("*filter\n-A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n", "iptables-nft-restore")
	done := make(chan struct{})
	time.AfterFunc(4*pause, func() {
		defer close(done)
		_ = n.ns.Do(func() error { return exec.Command("nft", "flush", "ruleset").Run() }) // shows in what was removed
	})
	if removed := n.remove(); total(removed, IPSets) != 7 {
		t.Errorf("removed %v, want 7 sets", removed)
	}
	<-done
}

func TestNFTablesMode(t *testing.T) {
	n := newNode(t, "nft")
	n.run("table ip mine {\n chain kube-proxy {\n}\n}\ntable inet kube-proxy {\n}\n", "nft", "-f", "-")
	before := n.run("", "nft", "-a", "list", "ruleset")
	v4 := strings.NewReplacer("FAMILY", "ip", "TYPE", "ipv4_addr", "ENDPOINT", "10.244.0.1:8080", "ADDRESS", "10.96.0.1")
	v6 := strings.NewReplacer("FAMILY", "ip6", "TYPE", "ipv6_addr", "ENDPOINT", "[fd00::1]:8080", "ADDRESS", "fd00::1")
	n.run(v4.Replace(nftablesMode)+v6.Replace(nftablesMode), "nft", "-f", "-")
	want := "[1 table in nftables: ip kube-proxy 1 table in nftables: ip6 kube-proxy]"
	if removed := n.remove(); fmt.Sprint(removed) != want {
		t.Errorf("removed %v, want %s", removed, want)
	}
	n.same("tables of others", before, n.run("", "nft", "-a", "list", "ruleset"))
	n.gone()
}

// TestRemoveMakesNoTables checks that Remove makes nothing: a table of iptables-legacy that is asked for comes into being.
func TestRemoveMakesNoTables(t *testing.T) {
	n := newNode(t, "nft")
	n.gone()
	if rules := n.run("", "nft", "list", "ruleset"); rules != "" {
		t.Errorf("nf_tables:\n%s", rules)
	}
	err := n.ns.Do(func() error {
		for _, f := range legacyFamilies {
			if names, err := os.ReadFile(f.names); len(names) > 0 {
				t.Errorf("tables of iptables-legacy (%s): %q, %v", f.ip, names, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCancelled(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := n.ns.Do(func() error { _, err := Remove(ctx); return err })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v, want context.Canceled", err)
	}
}

// TestWithoutRights takes all capabilities from the thread that looks: it must not report that there is nothing.
func TestWithoutRights(t *testing.T) {
	n := newNode(t, "iptables-legacy-restore", "iptables-nft-restore")
	n.run(oldRules, "iptables-legacy-restore")
	n.run(oldRules, "iptables-nft-restore")
	var items []Item
	err := n.ns.Do(func() error { // the thread cannot come back, and is thrown away
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		var err error
		items, err = Remove(t.Context())
		return err
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(fmt.Sprint(err), "CAP_NET_ADMIN") {
		t.Errorf("without capabilities: removed %v, %v; want EPERM and the capabilities that it takes", items, err)
	}
}

// TestLocked has another program hold the lock of iptables-legacy: Remove waits until it may, or for as long as it is allowed to.
func TestLocked(t *testing.T) {
	n := newNode(t, "iptables-legacy-restore")
	n.run(oldRules, "iptables-legacy-restore")
	unlock, err := lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*pause) // on a busy machine it takes a while until the lock is asked for
	defer cancel()
	err = n.ns.Do(func() error { _, err := Remove(ctx); return err })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "table ip nat of iptables-legacy: another program holds "+lockFile) {
		t.Errorf("while the lock is held: %v, want the lock file and the table", err)
	}
	done := make(chan struct{})
	go func() { defer close(done); unlock() }()
	if total(n.remove(), Chains) != 3 {
		t.Error("not removed after the lock was let go")
	}
	<-done
	n.gone()
}

// serviceNode is a node with a service 10.96.0.1:80 and two endpoints on the node itself, which say who they are.
func serviceNode(t *testing.T, tools ...string) *node {
	n := newNode(t, tools...)
	err := n.ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		address, _ := netlink.ParseAddr("192.0.2.1/32")
		return errors.Join(
			netlink.LinkSetUp(lo),
			netlink.AddrAdd(lo, address),
			netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	for port, name := range map[string]string{"8001": "old", "8002": "new"} {
		var l net.Listener
		err := n.ns.Do(func() (err error) { l, err = net.Listen("tcp", "192.0.2.1:"+port); return err })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go answer(c, name)
			}
		}()
	}
	return n
}

// answer answers each byte with a server's name.
func answer(c net.Conn, name string) {
	defer c.Close()
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return
		}
		if _, err := c.Write([]byte(name)); err != nil {
			return
		}
	}
}

func (n *node) connect() net.Conn {
	n.Helper()
	var c net.Conn
	err := n.ns.Do(func() (err error) {
		// A raw socket's connect is made on this thread; net.Dial may make it on another.
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		to := netip.MustParseAddrPort("10.96.0.1:80")
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
			return err
		}
		c, err = net.FileConn(f)
		return err
	})
	if err != nil {
		n.Fatalf("connecting to the service: %v", err)
	}
	n.Cleanup(func() { c.Close() })
	return c
}

// ask returns who answers on a connection.
func (n *node) ask(c net.Conn) string {
	n.Helper()
	b := make([]byte, 3)
	if _, err := c.Write([]byte("?")); err != nil {
		n.Fatal(err)
	}
	if _, err := c.Read(b); err != nil {
		n.Fatal(err)
	}
	return string(b)
}

// oldProxies are the ways in which kube-proxy may have left the service.
var oldProxies = []struct {
	name  string
	rules string
	tool  []string
}{
	{"iptables-nft", oldRules, []string{"iptables-nft-restore", "--noflush"}},
	{"iptables-legacy", oldRules, []string{"iptables-legacy-restore", "--noflush"}},
	{"nftables", `table ip kube-proxy { chain nat-output { type nat hook output priority -100
ip daddr 10.96.0.1 tcp dport 80 dnat to 192.0.2.1:8001
}
}
`, []string{"nft", "-f", "-"}},
}

const (
	oldRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
:KUBE-SEP-ABCDEFGHIJKLMNOP - [0:0]
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SVC-NPX46M4PTMTKRN6Y -j KUBE-SEP-ABCDEFGHIJKLMNOP
-A KUBE-SEP-ABCDEFGHIJKLMNOP -p tcp -m tcp -j DNAT --to-destination 192.0.2.1:8001
COMMIT
`
	newRules = `table ip switchyard { chain output { type nat hook output priority -100
ip daddr 10.96.0.1 tcp dport 80 dnat to 192.0.2.1:8002
}
}
`
)

// TestMigration goes the way of a migration: old rules, both, new rules. Connections that are established go on throughout, and
// Whichever wins while both stand, a new connection reaches one endpoint of one of them: the one whose rules are newer.
func TestMigration(t *testing.T) {
	for _, old := range oldProxies {
		t.Run(old.name, func(t *testing.T) {
			n := serviceNode(t, old.tool[0], "nft")
			n.run(old.rules, old.tool...)
			before := n.connect()
			if got := n.ask(before); got != "old" {
				t.Fatalf("before the migration, answered by %s", got)
			}
			n.run(newRules, "nft", "-f", "-")
			overlap := n.connect()
			if got := n.ask(overlap); got != "new" {
				t.Errorf("while both stand, answered by %s, want new: the newest table is asked first", got)
			}
			if n.remove() == nil {
				t.Error("nothing was removed")
			}
			after := n.connect()
			for i, want := range []string{"old", "new", "new"} {
				if got := n.ask([]net.Conn{before, overlap, after}[i]); got != want {
					t.Errorf("connection %d: answered by %s, want %s", i, got, want)
				}
			}
			n.gone()
		})
	}
}

// TestOldProxyStartsLater adds the old rules afterwards.
func TestOldProxyStartsLater(t *testing.T) {
	for _, old := range oldProxies {
		t.Run(old.name, func(t *testing.T) {
			n := serviceNode(t, old.tool[0], "nft")
			n.run(newRules, "nft", "-f", "-")
			n.run(old.rules, old.tool...)
			overlap := n.connect()
			if got := n.ask(overlap); got != "old" {
				t.Errorf("while both stand, answered by %s, want old: the newest table is asked first", got)
			}
			n.remove()
			if got := n.ask(overlap); got != "old" {
				t.Errorf("an established connection is answered by %s, want old", got)
			}
			if got := n.ask(n.connect()); got != "new" {
				t.Errorf("afterwards, answered by %s, want new", got)
			}
		})
	}
}
