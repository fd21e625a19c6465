package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// modeConfig is a configuration file of a mode, without anything that the mode does not need.
func (n *node) modeConfig(mode string) string {
	n.Helper()
	text, err := os.ReadFile(n.config("linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0}}\n"))
	if err != nil {
		n.Fatal(err)
	}
	return n.file(mode+".yaml", strings.Replace(string(text), "mode: nftables", "mode: "+mode, 1))
}

// TestIPTables: these capabilities and system calls are enough for mode iptables and its programs, of both variants, and they cannot be left out.
func TestIPTables(t *testing.T) {
	needed := []int{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}
	for _, variant := range []string{"nft", "legacy"} {
		multi, err := exec.LookPath("xtables-" + variant + "-multi")
		if err != nil {
			t.Skipf("%v: install the package iptables", err)
		}
		t.Run(variant, func(t *testing.T) {
			n := newNode(t)
			n.env = append(n.env, "PATH="+n.programs(multi, variant), "XTABLES_LOCKFILE="+filepath.Join(n.dir, "lock"))
			n.filter.Filter = readProfileFile(t, iptablesProfileFile).strict(t)
			args := []string{"proxy", "--config", n.modeConfig("iptables"), "--master", "http://" + apiAddr}
			p := n.start(0, 0, needed, args...)
			n.eventually("iptables is what runs", func() bool { return n.get("127.0.0.1:10249", "/proxyMode") == "200 iptables" })
			n.eventually("connections to the cluster IP are routed", n.routes(clusterAddr))
			n.eventually("connections to the node port are routed", n.routes(nodeAddr+":"+nodePort))
			p.stop()
			if code := n.start(0, 0, needed, "cleanup").wait(); code != 0 || n.routes(clusterAddr)() {
				t.Errorf("cleanup has the exit code %d, and the cluster IP is routed: %v", code, n.routes(clusterAddr)())
			}

			// The usual profile lets nobody wait for a program: it says so, and goes on trying.
			n.filter.Filter = readProfile(t).filter(t)
			p = n.start(0, 0, needed, args...)
			n.eventually("what is missing is named", func() bool {
				return strings.Contains(p.output(), "iptables-"+variant+"-save -t nat: wait: function not implemented")
			})
			p.stop()
		})
	}
}

// programs makes a directory with the programs of one variant, and returns it.
func (n *node) programs(multi, variant string) string {
	n.Helper()
	dir := filepath.Join(n.dir, "programs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.Fatal(err)
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"save", "restore"} {
			if err := os.Symlink(multi, filepath.Join(dir, family+"-"+variant+"-"+what)); err != nil {
				n.Fatal(err)
			}
		}
	}
	return dir
}

// TestIPVS: one capability and the usual system calls are enough for mode ipvs. Where the kernel has no IPVS, the start ends with the module's name.
func TestIPVS(t *testing.T) {
	n := newNode(t)
	n.filter.Filter = readProfile(t).strict(t)
	p := n.start(somebody, somebody, netAdmin, "proxy", "--config", n.modeConfig("ipvs"), "--master", "http://"+apiAddr)
	var has bool
	_ = n.ns.Do(func() error {
		_, err := os.Stat("/proc/thread-self/net/ip_vs")
		has = err == nil
		return nil
	})
	if !has {
		if code := p.wait(); code == 0 || !strings.Contains(p.output(), "module ip_vs") {
			t.Errorf("exit code %d without IPVS, and the message:\n%s", code, p.output())
		}
		return
	}
	n.eventually("connections to the cluster IP are routed", n.routes(clusterAddr))
	p.stop()
}
