package confine

import (
	"bufio"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var units = []string{"switchyard.service", "switchyard-serve.service", "switchyard-apply.service"}

// unit is a file of systemd: the values of each setting, in order.
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u := make(unit)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), "="); found && !strings.HasPrefix(name, "#") {
			u[name] = append(u[name], value)
		}
	}
	return u
}

// systemd finds a program of systemd.
func systemd(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s, and nothing else checks the units; apt-get install systemd", name)
	}
	return path
}

// TestUnitsVerify has systemd read the units and the users, and say how exposed the processes are.
func TestUnitsVerify(t *testing.T) {
	root := t.TempDir()
	place := func(name, text string, mode os.FileMode) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range units {
		text, err := os.ReadFile(filepath.Join("..", "..", "systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		// The program is not installed where the tests run.
		place(name, strings.ReplaceAll(string(text), "/usr/local/bin/switchyard", "/bin/true"), 0o644)
		analyze := systemd(t, "systemd-analyze")
		if out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(root, name)).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		// In tenths: 100 is everything.
		if out, err := exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold=20", filepath.Join(root, name)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	users, err := os.ReadFile(filepath.Join("..", "..", "systemd", "sysusers.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil { // where the new /etc/passwd goes
		t.Fatal(err)
	}
	place("usr/lib/sysusers.d/switchyard.conf", string(users), 0o644)
	if out, err := exec.Command(systemd(t, "systemd-sysusers"), "--root="+root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passwd, err := os.ReadFile(filepath.Join(root, "etc", "passwd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range units {
		if user := readUnit(t, name)["User"][0]; !strings.Contains(string(passwd), "\n"+user+":") && !strings.HasPrefix(string(passwd), user+":") {
			t.Errorf("%s: there is no user %s", name, user)
		}
	}
}

// filterSet expands SystemCallFilter as systemd.exec(5) says: the first line permits, later ones add, or take away (~).
func (u unit) filterSet(t *testing.T) map[string]bool {
	t.Helper()
	analyze := systemd(t, "systemd-analyze")
	var expand func(name string, to map[string]bool)
	expand = func(name string, to map[string]bool) {
		if !strings.HasPrefix(name, "@") {
			to[name] = true
			return
		}
		out, err := exec.Command(analyze, "syscall-filter", name).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); line != name && line != "" && !strings.HasPrefix(line, "#") {
				expand(line, to)
			}
		}
	}
	set := make(map[string]bool)
	for i, line := range u["SystemCallFilter"] {
		rest, away := strings.CutPrefix(line, "~")
		if i == 0 {
			expand("@default", set) // always with a list of what is permitted
		}
		named := make(map[string]bool)
		for name := range strings.FieldsSeq(rest) {
			expand(name, named)
		}
		if away {
			maps.DeleteFunc(set, func(name string, _ bool) bool { return named[name] })
		} else {
			maps.Copy(set, named)
		}
	}
	return set
}

// TestDropInOfModeEBPF: a unit with the drop-in permits the profile of mode ebpf, and has its capabilities. The root of the cgroup file system of
// a host is opened by its path.
func TestDropInOfModeEBPF(t *testing.T) {
	u := readUnit(t, "switchyard.service")
	for name, values := range readUnit(t, "ebpf.conf") {
		u[name] = append(u[name], values...)
	}
	set := u.filterSet(t)
	for _, r := range readProfileFile(t, ebpfProfileFile).Syscalls {
		for _, call := range r.Names {
			if !set[call] && call != "open_by_handle_at" && call != "arch_prctl" {
				t.Errorf("%s is forbidden", call)
			}
		}
	}
	for _, name := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
		if got := strings.Join(u[name], " "); got != "CAP_NET_ADMIN CAP_BPF CAP_PERFMON" {
			t.Errorf("%s is %s", name, got)
		}
	}
}

var families = map[string]uint64{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}

// profile is the filters of the unit's settings: SystemCallFilter, RestrictAddressFamilies, RestrictNamespaces and
// MemoryDenyWriteExecute.
func (u unit) profile(t *testing.T) *profile {
	t.Helper()
	set := u.filterSet(t)
	p := new(profile)
	allow := func(index uint32, mask, value uint64, names ...string) {
		p.Syscalls = append(p.Syscalls, rule{Names: names, Action: "SCMP_ACT_ALLOW",
			Args: []condition{{Index: index, Value: mask, ValueTwo: value, Op: "SCMP_CMP_MASKED_EQ"}}})
	}
	for family := range strings.FieldsSeq(u["RestrictAddressFamilies"][0]) {
		allow(0, 1<<64-1, families[family], "socket")
	}
	for _, setting := range []string{"RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictSUIDSGID", "NoNewPrivileges"} {
		if !slices.Equal(u[setting], []string{"yes"}) {
			t.Fatalf("%s is %v", setting, u[setting])
		}
	}
	allow(0, 0x7e020080, 0, "clone")
	allow(2, unix.PROT_EXEC, 0, "mprotect")
	allow(2, unix.PROT_EXEC, 0, "mmap")
	allow(2, unix.PROT_EXEC|unix.PROT_WRITE, unix.PROT_EXEC, "mmap")
	allow(2, unix.S_ISUID|unix.S_ISGID, 0, "fchmodat")
	for _, name := range []string{"socket", "clone", "clone3", "mprotect", "mmap", "fchmodat", "unshare", "setns", "pkey_mprotect", "shmat"} {
		delete(set, name)
	}
	p.Syscalls = append(p.Syscalls, rule{Names: slices.Sorted(maps.Keys(set)), Action: "SCMP_ACT_ALLOW"})
	return p
}

// TestUnitsPermitTheProfile compares the units with the profile, which is known to be enough.
func TestUnitsPermitTheProfile(t *testing.T) {
	for _, name := range units {
		set := readUnit(t, name).filterSet(t)
		for _, r := range readProfile(t).Syscalls {
			for _, call := range r.Names {
				if !set[call] && call != "arch_prctl" { // of other architectures, or permitted by itself
					t.Errorf("%s does not permit %s", name, call)
				}
			}
		}
		for _, dangerous := range []string{"mount", "ptrace", "bpf", "keyctl", "setuid", "init_module", "reboot", "pivot_root", "chroot"} {
			if set[dangerous] {
				t.Errorf("%s permits %s", name, dangerous)
			}
		}
	}
}

// users and groups are the names of sysusers.conf, with numbers of our own.
var users = map[string]int{"switchyard": 65531, "switchyard-apply": 65533}

const unitGroup = 65530

// startUnit runs the command of a unit with what the unit leaves to it: user, group, capabilities, system calls, families of sockets,
// and a file system of which it can write the runtime directory only. A call that the unit forbids ends the process.
func (d *deployed) startUnit(name, config, runtime, secrets string) *process {
	d.Helper()
	u := readUnit(d.T, name)
	if u["Group"][0] != "switchyard" || u["ProtectSystem"][0] != "strict" {
		d.Fatalf("%s has the group %v and ProtectSystem %v", name, u["Group"], u["ProtectSystem"])
	}
	root, err := os.MkdirTemp(d.dir, "root")
	if err != nil {
		d.Fatal(err)
	}
	_, ownRuntime := u["RuntimeDirectory"]
	_, protected := u["ProtectKernelTunables"]
	c := confinement{UID: users[u["User"][0]], GID: unitGroup, Filter: u.profile(d.T).strict(d.T), Root: root, Mounts: []mount{
		{d.binary, "/usr/local/bin/switchyard", false}, {"/proc", "/proc", !protected}, {runtime, "/run/switchyard", ownRuntime},
		{filepath.Join(d.dir, "hosts"), "/etc/hosts", false}, {filepath.Join(d.dir, "passwd"), "/etc/passwd", false}, {secrets, "/var/run/secrets/kubernetes.io/serviceaccount", false},
	}}
	if _, hidden := u["InaccessiblePaths"]; !hidden {
		c.Mounts = append(c.Mounts, mount{config, "/etc/switchyard", false})
	}
	if bounding := u["CapabilityBoundingSet"][0]; bounding == "CAP_NET_ADMIN" && u["AmbientCapabilities"][0] == bounding {
		c.Caps = netAdmin
	} else if bounding != "" {
		d.Fatalf("%s has the capabilities %s", name, bounding)
	}
	return d.startAs(c, strings.Fields(u["ExecStart"][0])...)
}

// TestUnitsRun starts the units' commands: the two, and then the one in their place.
func TestUnitsRun(t *testing.T) {
	systemd(t, "systemd-analyze")
	d, m := deploy(t), readManifests(t, "kustomize/split")
	// The API server's address does not matter here: the files are the pods' files.
	secrets := d.volumes(m, pkix.Name{})["token"]
	const kubeconfig = "kubeconfig.yaml"
	config := d.volume(map[string]string{
		kubeconfig: m.configs["switchyard"][kubeconfig],
		"config.yaml": "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nhostnameOverride: node-a\nmode: nftables\n" +
			"clientConnection: {kubeconfig: /etc/switchyard/kubeconfig.yaml}\nlinux: {conntrack: {tcpEstablishedTimeout: 21h}}\n",
	}, 0o644)
	for _, path := range []string{filepath.Join(secrets, "token"), filepath.Join(secrets, "ca.crt")} {
		if err := os.Chown(path, 0, unitGroup); err != nil {
			t.Fatal(err)
		}
	}
	runtime := d.volume(nil, 0)
	if err := os.Chown(runtime, users["switchyard"], unitGroup); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(runtime, 0o750); err != nil {
		t.Fatal(err)
	}
	var passwd strings.Builder
	for name, number := range users {
		fmt.Fprintf(&passwd, "%s:x:%d:%d::/:/bin/false\n", name, number, unitGroup)
	}
	d.file("passwd", passwd.String())
	serve := d.startUnit("switchyard-serve.service", config, runtime, secrets)
	apply := d.startUnit("switchyard-apply.service", config, runtime, secrets)
	d.eventually("connections are routed", d.routes(clusterAddr))
	d.flush()
	d.eventually("the rules are there", d.routes(clusterAddr))
	apply.stop()
	serve.stop()
	proxy := d.startUnit("switchyard.service", config, runtime, secrets)
	d.eventually("the time-out is set", func() bool { return d.sysctl("nf_conntrack_tcp_timeout_established") == "75600" })
	d.flush()
	d.eventually("the rules are there", d.routes(clusterAddr))
	proxy.stop()
}

// TestUnitsExclude checks that the runtime directory of one way to run goes before the other begins, and that no unit is given up.
func TestUnitsExclude(t *testing.T) {
	for _, name := range units {
		u := readUnit(t, name)
		if !slices.Equal(u["StartLimitIntervalSec"], []string{"0"}) || !slices.Equal(u["Restart"], []string{"always"}) {
			t.Errorf("%s is given up", name)
		}
		if name == units[0] {
			continue
		}
		if !slices.Equal(u["Conflicts"], units[:1]) || !slices.Contains(strings.Fields(u["After"][0]), units[0]) {
			t.Errorf("%s conflicts with %v, and starts after %v", name, u["Conflicts"], u["After"])
		}
	}
}
