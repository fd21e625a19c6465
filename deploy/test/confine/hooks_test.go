package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hookedNode is a node with a configuration of mode ebpf, whose hooks are for the processes of a cgroup of its own.
func hookedNode(t *testing.T) (n *node, config string) {
	t.Helper()
	n = newNode(t)
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		cgroup := filepath.Join(root, fmt.Sprintf("switchyard-confine-%d", os.Getpid()))
		if err := os.Mkdir(cgroup, 0o755); err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() { os.Remove(cgroup) })
		config = n.config("ebpf: {cgroupPath: " + cgroup + "}\nlinux: {oomScoreAdj: 0}\n")
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		return n, n.file("config.yaml", strings.Replace(string(text), "mode: nftables", "mode: ebpf", 1))
	}
	t.Skip("no cgroup2 file system is mounted")
	return nil, ""
}

// hooksAre returns whether the socket hooks of the node's process are in a state.
func (n *node) hooksAre(state string) func() bool {
	return func() bool {
		return strings.Contains(n.get("127.0.0.1:10249", "/metrics"), `switchyard_socket_hooks{state="`+state+`"} 1`)
	}
}

// TestHooks: these capabilities and system calls are enough for mode ebpf, and none of them can be left out: then nftables goes on alone.
func TestHooks(t *testing.T) {
	needed := []int{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}
	for name, user := range map[string]int{"root": 0, "somebody": somebody} {
		t.Run(name, func(t *testing.T) {
			n, config := hookedNode(t)
			n.filter.Filter, n.env = readProfileFile(t, ebpfProfileFile).strict(t), tight
			p := n.start(user, user, needed, "proxy", "--config", config, "--master", "http://"+apiAddr)
			n.eventually("connections to the cluster IP are routed", n.routes(clusterAddr))
			n.eventually("the hooks are on", n.hooksAre("on"))
			p.stop()
		})
	}
	for name, start := range map[string]func(n *node, config string) *process{
		"without BPF": func(n *node, config string) *process {
			n.filter.Filter = readProfileFile(n.T, ebpfProfileFile).filter(n.T)
			return n.start(0, 0, []int{unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, "proxy", "--config", config, "--master", "http://"+apiAddr)
		},
		"without PERFMON": func(n *node, config string) *process {
			n.filter.Filter = readProfileFile(n.T, ebpfProfileFile).filter(n.T)
			return n.start(0, 0, needed[:2], "proxy", "--config", config, "--master", "http://"+apiAddr)
		},
		"with the usual profile": func(n *node, config string) *process {
			return n.start(0, 0, needed, "proxy", "--config", config, "--master", "http://"+apiAddr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, config := hookedNode(t)
			p := start(n, config)
			n.eventually("connections to the cluster IP are routed", n.routes(clusterAddr))
			n.eventually("the hooks are off", n.hooksAre("off"))
			if health := n.get("127.0.0.1:10256", "/healthz"); !strings.HasPrefix(health, "200 ") || !strings.Contains(health, "socketHooks") {
				t.Errorf("/healthz is %s", health)
			}
			if said := p.output(); strings.Count(said, "and not at sockets") != 1 {
				t.Errorf("it does not say once why:\n%s", said)
			}
			p.stop()
		})
	}
}
