package confine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// flush removes all rules of the node, as firewalls do. Since Linux 6.9 the rules of a running process stay.
func (n *node) flush() {
	n.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		n.Skip("needs nft, to flush the rules; apt-get install nftables")
	}
	cmd := exec.Command("nft", "flush", "ruleset")
	if err := n.ns.Do(cmd.Start); err != nil {
		n.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		n.Fatal(err)
	}
}

// many are services enough to keep memory under pressure.
func many(count int) string {
	var text strings.Builder
	for i := range count {
		fmt.Fprintf(&text, `---
{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"other-%d"},"spec":{"clusterIP":"10.97.%d.%d",
"clusterIPs":["10.97.%[2]d.%[3]d"],"ipFamilies":["IPv4"],"ports":[{"port":80}]}}
`, i, i/250, i%250+1)
	}
	return text.String()
}

// tight has Go collect garbage and return memory all the time.
var tight = []string{"GOGC=5", "GOMEMLIMIT=12MiB"}

// TestProfileHasAllSystemCalls puts a process through all events of its life. The profile must permit all its system
// calls.
func TestProfileHasAllSystemCalls(t *testing.T) {
	n := newNode(t)
	n.filter.Filter, n.env = readProfile(t).strict(t), tight
	n.file("many.yaml", many(1000))
	other := "10.96.0.11:80"
	move := func(from, to string) {
		n.file("web.yaml", strings.ReplaceAll(objects["nodes"]+"\n---\n"+objects["services"]+"\n---\n"+objects["endpointslices"]+"\n", from, to))
	}
	for _, format := range []string{"text", "json"} {
		p := n.start(somebody, somebody, netAdmin, "run", "--source", n.dir, "--node", "node-a", "-v", "4", "--logging-format", format)
		n.eventually("connections are routed", n.routes(clusterAddr))
		move("10.96.0.10", "10.96.0.11")
		n.eventually("connections to the new address are routed", n.routes(other))
		n.flush()
		n.eventually("the rules are there", n.routes(other))
		n.file("bad.yaml", "kind: [\n")
		n.eventually("the broken file is reported", func() bool { return strings.Contains(n.get("127.0.0.1:10256", "/healthz"), "bad.yaml") })
		if err := os.Remove(filepath.Join(n.dir, "bad.yaml")); err != nil {
			t.Fatal(err)
		}
		move("", "")
		n.eventually("connections to the first address are routed", n.routes(clusterAddr))
		p.stop()
	}
	if code := n.start(somebody, somebody, netAdmin, "cleanup").wait(); code != 0 || n.routes(clusterAddr)() {
		t.Errorf("cleanup: exit code %d", code)
	}
}

// TestLifeOfProxy is the same with an API server, and a configuration that changes.
func TestLifeOfProxy(t *testing.T) {
	n := newNode(t)
	n.filter.Filter, n.env = readProfile(t).strict(t), tight
	config := func(timeout string) string {
		return n.config("linux: {conntrack: {tcpCloseWaitTimeout: " + timeout + "}}\n")
	}
	for _, user := range []int{0, somebody} {
		path := config("23m")
		p := n.start(user, user, netAdmin, "proxy", "--config", path, "--master", "http://"+apiAddr)
		n.eventually("connections are routed", n.routes(clusterAddr))
		n.eventually("the configuration is read", func() bool { return n.sysctl("nf_conntrack_tcp_timeout_close_wait") == "1380" })
		config("22m")
		n.eventually("the configuration is read again", func() bool { return n.sysctl("nf_conntrack_tcp_timeout_close_wait") == "1320" })
		n.flush()
		n.eventually("the rules are there", n.routes(clusterAddr))
		if got := n.get("127.0.0.1:10249", "/metrics"); !strings.HasPrefix(got, "200") {
			t.Errorf("/metrics: %.100s", got)
		}
		p.stop()
		n.flush() // so that what follows is the work of the next process
	}
}

// TestServeAndApplyAreRestarted has serve and apply killed and started again.
func TestServeAndApplyAreRestarted(t *testing.T) {
	n := newNode(t)
	n.filter.Filter, n.env = readProfile(t).strict(t), tight
	if err := os.Chmod(n.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + filepath.Join(n.dir, "api.sock")
	serve := func() *process {
		return n.start(somebody, somebody, nil, "serve", "--source", filepath.Join(n.dir, "web.yaml"), "--node", "node-a", "--listen", socket,
			"--healthz-bind-address", "127.0.0.1:10266")
	}
	apply := func() *process {
		return n.start(somebody, somebody, netAdmin, "apply", "nftables", "--api", socket, "-v", "4")
	}
	s, a := serve(), apply()
	n.eventually("connections are routed", n.routes(clusterAddr))
	_ = s.cmd.Process.Kill()
	s.wait()
	n.flush()
	n.eventually("the rules are there without a server", n.routes(clusterAddr))
	s = serve() // replaces the socket that the dead process left
	n.file("web.yaml", strings.ReplaceAll(objects["nodes"]+"\n---\n"+objects["services"]+"\n---\n"+objects["endpointslices"], "10.96.0.10", "10.96.0.11"))
	n.eventually("a change arrives", n.routes("10.96.0.11:80"))
	_ = a.cmd.Process.Kill()
	a.wait()
	a = apply()
	n.eventually("a new apply is well", func() bool { return strings.HasPrefix(n.get("127.0.0.1:10256", "/healthz"), "200") })
	if got := n.get("127.0.0.1:10266", "/healthz"); !strings.HasPrefix(got, "200") {
		t.Errorf("/healthz of serve: %s", got)
	}
	a.stop()
	s.stop()
}

// call is a system call that an attacker would like to make. Its other arguments are -1, with which it does nothing.
type call struct {
	name   string
	number uintptr
	first  uintptr
}

const no = ^uintptr(0)

// forbidden are calls that must fail, whatever capabilities a process has.
var forbidden = []call{
	{"ptrace", unix.SYS_PTRACE, no}, {"process_vm_readv", unix.SYS_PROCESS_VM_READV, no}, {"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, no},
	{"mount", unix.SYS_MOUNT, no}, {"umount2", unix.SYS_UMOUNT2, no}, {"pivot_root", unix.SYS_PIVOT_ROOT, no}, {"chroot", unix.SYS_CHROOT, no},
	{"fsopen", unix.SYS_FSOPEN, no}, {"move_mount", unix.SYS_MOVE_MOUNT, no}, {"open_tree", unix.SYS_OPEN_TREE, no},
	{"bpf", unix.SYS_BPF, no}, {"perf_event_open", unix.SYS_PERF_EVENT_OPEN, no}, {"userfaultfd", unix.SYS_USERFAULTFD, no},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, no}, {"keyctl", unix.SYS_KEYCTL, no}, {"add_key", unix.SYS_ADD_KEY, no},
	{"init_module", unix.SYS_INIT_MODULE, no}, {"finit_module", unix.SYS_FINIT_MODULE, no}, {"delete_module", unix.SYS_DELETE_MODULE, no},
	{"kexec_load", unix.SYS_KEXEC_LOAD, no}, {"reboot", unix.SYS_REBOOT, no}, {"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, no},
	{"unshare", unix.SYS_UNSHARE, no}, {"setns", unix.SYS_SETNS, no}, {"clone3", unix.SYS_CLONE3, no},
	{"clone with a new user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER | unix.CLONE_SIGHAND}, // without CLONE_VM it is invalid
	{"setuid", unix.SYS_SETUID, no}, {"setresuid", unix.SYS_SETRESUID, no}, {"capset", unix.SYS_CAPSET, no},
	{"mknodat", unix.SYS_MKNODAT, no}, {"symlinkat", unix.SYS_SYMLINKAT, no}, {"linkat", unix.SYS_LINKAT, no}, {"fchownat", unix.SYS_FCHOWNAT, no},
	{"execveat", unix.SYS_EXECVEAT, no}, {"memfd_create", unix.SYS_MEMFD_CREATE, no}, {"pidfd_getfd", unix.SYS_PIDFD_GETFD, no},
	{"socket of packets", unix.SYS_SOCKET, unix.AF_PACKET}, {"socket of a virtual machine", unix.SYS_SOCKET, unix.AF_VSOCK},
	{"socket of the kernel's ciphers", unix.SYS_SOCKET, unix.AF_ALG},
}

// probe makes the calls on this thread, and prints how each of them fails. It is not a program of its own: only what is forbidden
// is tried.
func probe() error {
	for _, c := range forbidden {
		_, _, errno := unix.RawSyscall6(c.number, c.first, no, no, no, no, no)
		fmt.Printf("%s: %d\n", c.name, int(errno))
	}
	return fmt.Errorf("has probed")
}

// held are the capabilities of this process, which may be fewer than there are.
func held(t *testing.T) (caps []int) {
	t.Helper()
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		t.Fatal(err)
	}
	for b := range unix.CAP_LAST_CAP + 1 {
		if data[b/32].Permitted&(1<<(b%32)) != 0 {
			caps = append(caps, b)
		}
	}
	return caps
}

// TestForbidden has a process with all capabilities that we have, as root, ask for what the profile does not list.
func TestForbidden(t *testing.T) {
	n := newNode(t)
	all := held(t)
	ask := func(c confinement) map[string]string {
		c.Probe, c.Caps = true, all
		p := n.startAs(c, "probe")
		p.wait()
		said := make(map[string]string)
		for line := range strings.Lines(p.output()) {
			name, errno, _ := strings.Cut(strings.TrimSpace(line), ": ")
			said[name] = errno
		}
		return said
	}
	const missing = "38"
	if syscall.ENOSYS != 38 {
		t.Fatal("the profile's errno has another number here")
	}
	free, confined := ask(confinement{}), ask(n.filter)
	var unknown []string
	for _, c := range forbidden {
		if confined[c.name] != missing {
			t.Errorf("%s is not forbidden: errno %q", c.name, confined[c.name])
		}
		if free[c.name] == missing { // this kernel has none
			unknown = append(unknown, c.name)
		}
	}
	slices.Sort(unknown)
	t.Logf("without the profile, there is no %v here either", unknown)
	if len(unknown) > len(forbidden)/4 {
		t.Errorf("this says nothing about %d of %d calls", len(unknown), len(forbidden))
	}
}
