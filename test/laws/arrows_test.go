package laws

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// arrow describes what the packages of a tree may import of this module. Trees are matched by the longest path.
type arrow struct {
	from string
	to   []string
}

// arrows is the way of a change, from sources to the kernel, in one direction only. A tree that is not listed may not exist:
// Adding one means deciding here where it stands.
var arrows = []arrow{
	{"state", nil},
	{"internal/apportion", nil},
	{"internal/consistent", []string{"internal/apportion", "state"}},
	{"model", []string{"state"}},
	{"internal/source/file", []string{"model", "internal/apirules", "internal/manifest", "kubeconv", "client/regularfile"}},
	{"source/kube", []string{"model", "kubeconv", "client/regularfile", "internal/source/upstream"}},
	{"brain", []string{"model", "state"}},
	{"internal/revlog", []string{"model", "state"}},
	{"store", []string{"model", "state", "brain", "internal/revlog"}},
	{"internal/diagnosis", []string{"model", "state", "brain", "store", "internal/spelling"}},
	{"internal/diagnosis/apifacts", []string{"state", "internal/apirules", "internal/diagnosis", "internal/manifest", "internal/spelling"}},
	{"internal/explain", []string{"model", "state", "brain", "store", "internal/diagnosis", "internal/spelling"}},
	{"internal/admin/view", []string{"model", "state", "brain", "store", "internal/diagnosis"}},
	{"backend", []string{"state"}},
	{"internal/backendtest", []string{"state", "backend"}},
	// The parts of the kernel that a dataplane needs in addition to its own rules.
	{"internal/kernel/ifaddr", nil},
	{"kernel/conntrack", []string{"state"}},
	{"internal/kernel/nodelock", []string{"internal/kernel/nft"}},
	{"internal/kernel/localnet", nil},
	{"internal/kernel/ctusage", nil},
	{"internal/kernel/ipset", []string{"state"}},
	{"internal/kernel/namespace", nil},
	{"internal/kernel/bpfarray", nil},
	{"backend/nftables", []string{"state", "backend", "internal/apportion", "internal/consistent", "kernel/conntrack", "internal/kernel/localnet", "internal/kernel/namespace", "internal/kernel/nft", "internal/kernel/ifaddr", "internal/kernel/nodelock"}},
	// It is pure, and knows nothing of the dataplane that carries its plans out.
	{"backend/nftables/internal/least", []string{"state", "internal/apportion"}},
	{"backend/nftables/internal/ruleset", []string{"state", "internal/kernel/nft", "internal/apportion", "internal/consistent", "backend/nftables/internal/least"}},
	// It is pure, and decides from what others have read and probed.
	{"backend/nftables/internal/ejection", []string{"state", "backend/nftables/internal/ruleset"}},

	// The API: states over a wire, and back into states.
	{"client/localnet/v1", nil},
	{"internal/proto/cluster/v1", nil},
	{"internal/admin/v1", nil},
	{"internal/admin/adminconv", []string{"brain", "internal/diagnosis", "internal/admin/view", "internal/admin/v1"}},
	{"internal/admin/adminserver", []string{"internal/explain", "internal/admin/view", "internal/admin/adminconv", "internal/connlimit", "internal/admin/v1", "client/peeruser"}},
	{"internal/plaintext", nil},
	{"internal/admin/top", []string{"internal/admin/view", "internal/plaintext"}},
	{"internal/admin/ui", []string{"state", "store", "internal/explain", "internal/admin/view", "backend"}},
	{"internal/protoconv", []string{"model", "state", "client/localnet/v1", "internal/proto/cluster/v1"}},
	{"internal/source/upstream", nil},
	{"internal/connlimit", []string{"client/peeruser"}},
	{"internal/loglimit", nil},
	{"internal/httpserver", []string{"internal/connlimit"}},
	{"server", []string{"state", "internal/protoconv", "internal/connlimit", "client/localnet/v1", "client/tlsfiles", "client/peeruser", "client/namedpipe"}},
	{"internal/apifollower", []string{"state", "internal/protoconv", "internal/revlog", "client", "client/localnet/v1"}},
	// A backend of another repository in a process of its own.
	{"apifeed", []string{"state", "backend", "client", "internal/apifollower"}},
	{"internal/objectlog", []string{"model", "state", "internal/revlog"}},
	{"internal/lastknown", []string{"model"}},
	{"internal/edgenode", []string{"model"}},
	{"internal/clusterserver", []string{"model", "state", "internal/objectlog", "internal/protoconv", "internal/proto/cluster/v1"}},
	// client: it dials a relay as any other client does.
	{"internal/source/relay", []string{"model", "client", "internal/source/upstream", "internal/protoconv", "internal/proto/cluster/v1"}},

	// The configuration: the versions of files do not know each other, and no dataplane knows it.
	{"backend/iptables", []string{"state", "backend", "kernel/conntrack", "internal/kernel/ipset", "internal/kernel/localnet", "internal/kernel/namespace", "internal/kernel/nft", "internal/kernel/ifaddr", "internal/kernel/nodelock"}},
	// It is pure, like the nftables dataplane's.
	{"backend/iptables/internal/rules", []string{"state", "internal/kernel/ipset"}},
	{"backend/ipvs", []string{"state", "backend", "internal/kernel/ipvs", "internal/kernel/nft", "internal/kernel/ifaddr", "kernel/conntrack", "internal/kernel/nodelock"}},
	// It is pure.
	{"backend/ipvs/internal/plan", []string{"state", "internal/kernel/nft"}},
	{"backend/ebpf", []string{"state", "backend", "internal/ebpf/maps", "internal/ebpf/plan", "internal/ebpf/programs", "internal/kernel/ifaddr", "internal/kernel/namespace"}},
	// It is pure, and knows neither maps nor programs.
	{"internal/ebpf/plan", []string{"internal/apportion", "state"}},
	{"internal/ebpf/maps", []string{"state", "internal/ebpf/plan", "internal/kernel/bpfarray"}},
	{"internal/ebpf/programs", nil},
	{"internal/ebpf/ebpftest", []string{"state", "internal/ebpf/plan", "internal/ebpf/maps"}},
	{"internal/edge", []string{"state", "internal/edge/plan", "internal/edge/programs", "internal/kernel/bpfarray", "internal/kernel/namespace"}},
	// It is pure, and knows neither maps nor programs.
	{"internal/edge/plan", []string{"state"}},
	{"internal/edge/programs", nil},
	{"backend/userspace", []string{"state", "backend", "internal/kernel/nft", "kernel/conntrack", "internal/kernel/ifaddr", "internal/kernel/nodelock"}},
	// They are pure, and know nothing of sockets.
	{"backend/userspace/internal/plan", []string{"state", "internal/apportion", "internal/consistent"}},
	{"backend/userspace/internal/balance", []string{"state", "internal/consistent", "backend/userspace/internal/plan"}},
	{"backend/userspace/internal/ledger", []string{"state", "backend/userspace/internal/plan", "backend/userspace/internal/balance"}},
	{"backend/userspace/internal/hostrelay", []string{"state", "backend", "backend/userspace/internal/plan", "backend/userspace/internal/balance", "backend/userspace/internal/ledger"}},
	{"internal/winkernel", []string{"state", "backend"}},
	// It is pure, and knows nothing of what makes its calls.
	{"internal/winkernel/internal/plan", []string{"state"}},
	{"internal/winkernel/internal/hnstest", []string{"state", "internal/winkernel/internal/plan"}},
	// Which bits of packet marks are taken is one of the things that a configuration must fit.
	{"config", []string{"state", "brain", "internal/source/upstream"}},
	{"config/v1alpha1", []string{"config"}},
	{"config/v1alpha2", []string{"config"}},
	{"internal/configfile", []string{"config", "config/v1alpha1", "config/v1alpha2", "internal/manifest", "client/regularfile"}},

	// The building blocks of sources and dataplanes.
	{"internal/spelling", nil},
	{"internal/manifest", []string{"client/regularfile", "internal/spelling"}},
	{"internal/apirules", nil},
	{"kubeconv", []string{"model", "state"}},
	{"internal/kernel/nft", nil},
	{"internal/kernel/ipvs", nil},
	{"internal/ops/nodesetup", []string{"kernel/conntrack", "state"}},
	{"internal/kernel/leftovers", []string{"internal/kernel/nft"}},
	{"internal/admin/doctor", []string{"internal/kernel/ctusage", "internal/kernel/leftovers", "internal/kernel/nft"}},
	{"internal/resident", nil},
	{"internal/ops/healthz", []string{"state", "backend"}},
	{"internal/ops/servicehealth", []string{"state", "internal/connlimit", "internal/httpserver"}},
	{"internal/ops/metrics", []string{"model", "state", "backend"}},

	// The lab that people try, behind one package that nothing on a node's path imports.
	{"lab/minicluster", []string{"state", "internal/apirules", "internal/manifest", "internal/spelling"}},
	{"lab/inputs", []string{"client/regularfile", "internal/manifest"}},
	{"lab", []string{"model", "state", "brain", "store", "backend", "internal", "kubeconv", "test"}},

	// Yardsticks: they must not know what they measure.
	{"test/probe", []string{"state"}},
	{"test/refdataplane", []string{"state", "test/probe"}},
	{"test/oracle", []string{"model", "state", "test/probe"}},
	{"test/randcluster", []string{"model", "state", "test/probe", "test/oracle"}},
	{"test/recordtest", []string{"backend", "state"}},
	{"test/netns", nil},
	{"test/topology", []string{"state", "test/netns"}},
	{"test/netnstest", []string{"test/netns", "test/topology"}},
	{"test/dataplanes", []string{"state", "backend"}},
	{"test/sockethooks", []string{"backend", "test/topology"}},
	{"test/balance", []string{"model", "state", "brain", "store", "backend", "test/dataplanes", "test/sockethooks", "test/topology"}},
	{"test/loadcheck", []string{"state", "test/probe", "test/oracle", "test/topology"}},
	{"test/laws", nil},
	{"test/windows", []string{"client", "client/localnet/v1"}},
	{"test/windows/cases", []string{"model", "state", "test/randcluster"}},
	{"test/apitest", []string{"state", "internal/source/file", "brain", "store", "server", "internal/objectlog"}},
	{"test/await", nil},
	{"test/usage", nil},
	{"test/program", nil},
	{"test/fields", nil},
	{"test/certtest", nil},
	{"test/kubeapi", nil},

	// The runtime of a node. It wires everything but the sources: client-go comes in with the caller that hands it source/kube.
	{"node", []string{"model", "state", "brain", "store", "backend", "server", "config", "config/v1alpha2", "internal"}},

	// These stand at the end of the way.
	// Authors who copy a program that follows the API have nothing else of this repository.
	{"examples/print-state", []string{"client", "client/localnet/v1"}},
	{"examples/dns", []string{"client", "client/localnet/v1"}},
	{"examples/tiny-dataplane", []string{"client", "client/localnet/v1"}},
	{"examples/nft-dataplane", []string{"client", "client/localnet/v1"}},
	{"examples/apply-file", []string{"state", "backend", "client", "apifeed"}},
	{"examples", []string{"client", "client/localnet/v1", "server", "model", "state", "brain", "store", "backend"}},
	{"conformance", []string{"model", "state", "brain", "store", "backend", "internal", "server", "kubeconv", "lab/minicluster", "test"}},
	{"test/upgrade", []string{"client", "client/localnet/v1", "internal/proto/cluster/v1"}},
	{"test/chaos", []string{"model", "state", "brain", "store", "backend", "internal", "server", "kubeconv", "lab/minicluster", "test"}},
	{"test/bench", []string{"model", "state", "brain", "store", "backend", "kernel/conntrack", "internal", "server", "client", "client/localnet/v1", "kubeconv", "test"}},
	{"test/cmd", []string{"model", "test", "client", "config", "node", "internal/source/relay"}},
	{"cmd", []string{"model", "state", "source/kube", "brain", "store", "backend", "internal", "server", "client", "client/localnet/v1", "client/peeruser", "client/regularfile", "config", "config/v1alpha1", "config/v1alpha2", "kubeconv", "node"}},
	{"cmd/internal/cli", []string{"internal"}},
	// Programs that link one dataplane each.
	{"cmd/internal/dataplane", []string{"apifeed", "backend", "client", "client/peeruser", "cmd/internal/cli"}},
	// The laboratory, a program of its own.
	{"cmd/internal/labcmd", []string{"backend", "cmd/internal/cli", "config", "conformance", "examples", "internal", "lab", "lab/inputs", "test"}},
	{"cmd/switchyard-lab", []string{"cmd/internal/cli", "cmd/internal/labcmd"}},
}

const whyArrows = `
Law 1: the arrows are the only imports allowed. A change goes one way, sources -> model -> brain -> store -> backend ->
kernel, so that each step can be tested, replaced and embedded without the others. If the import is right and
the arrow is missing, add it to arrows in test/laws/arrows_test.go and to ARCHITECTURE.md.`

func TestArrowsAreTheOnlyImports(t *testing.T) {
	for _, p := range packages(t) {
		a := arrowOf(p.rel())
		if a == nil {
			t.Errorf("package %s has no place in the architecture.%s", p.rel(), whyArrows)
			continue
		}
		for _, f := range parse(t, &p, p.sources()) {
			f.imports(func(path string, spec *ast.ImportSpec) {
				to, ours := strings.CutPrefix(path, module+"/")
				if !ours || in(to, a.from) || slices.ContainsFunc(a.to, func(tree string) bool { return allowed(tree, to) }) {
					return
				}
				t.Errorf("%s: %s must not import %s.%s", f.line(spec), p.rel(), to, whyArrows)
			})
		}
	}
}

// allowed reports whether an arrow to tree covers the package to. An arrow to a single package does not cover those below it.
func allowed(tree, to string) bool {
	if slices.Contains([]string{"backend", "internal", "test"}, tree) {
		return in(to, tree)
	}
	return to == tree
}

func arrowOf(rel string) *arrow {
	var best *arrow
	for i, a := range arrows {
		if in(rel, a.from) && (best == nil || len(a.from) > len(best.from)) {
			best = &arrows[i]
		}
	}
	return best
}

// bans are imports that only some trees may have, directly or through others.
var bans = []struct {
	what string
	why  string
	// banned reports whether an import path is meant.
	banned func(path string) bool
	// from reports whether a package, by its path in the module, is under the ban.
	from func(rel string) bool
	// linked also bans imports through other packages.
	linked bool
}{
	{
		what: "client-go outside source/kube",
		why: `Law: source/kube is the only place where client-go lives. It brings a thousand packages, its own idea of logging and
caching, and a version that must follow the cluster's; programs that embed another part of Switchyard must not pay for it.`,
		banned: func(path string) bool { return in(path, "k8s.io/client-go") },
		from:   func(rel string) bool { return !in(rel, "source/kube", "cmd") },
		linked: true,
	},
	{
		what:   "k8s.io/kubernetes",
		why:    `Law 9: nothing imports k8s.io/kubernetes. It is not made to be a library: its go.mod replaces half of its own dependencies.`,
		banned: func(path string) bool { return in(path, "k8s.io/kubernetes") },
		from:   func(string) bool { return true },
		linked: true,
	},
	{
		what: "gRPC in a backend",
		why: `Law 1: a backend knows the state vocabulary and its kernel, not how a state reaches it. The same backend runs in the process of
the brain and behind the API.`,
		banned: func(path string) bool { return in(path, "google.golang.org/grpc") },
		from: func(rel string) bool {
			return in(rel, "backend", "internal/winkernel", "internal/ebpf", "internal/edge")
		},
		linked: true,
	},
	{
		what: "the Kubernetes API in a backend",
		why: `Law 2: the semantics live in the brain and cannot be ignored or read again. A backend that can see a Kubernetes object will some
day re-interpret one of its fields, and then two dataplanes differ.`,
		banned: func(path string) bool { return in(path, "k8s.io", module+"/model") },
		from: func(rel string) bool {
			return in(rel, "backend", "internal/winkernel", "internal/ebpf", "internal/edge", "state")
		},
		linked: true,
	},
	{
		what: "command line flags in a library",
		why: `Law 8: libraries never own flags. Two libraries that both define -v cannot be linked into one program; a program that embeds a package
passes an Options struct.`,
		banned: func(path string) bool { return path == "flag" || in(path, "github.com/spf13") },
		// test/netnstest has the flags of the test program parsed, and defines none.
		from: func(rel string) bool { return !in(rel, "cmd", "test/cmd", "test/netnstest", "examples") },
	},
}

func TestBannedImports(t *testing.T) {
	for _, ban := range bans {
		t.Run(ban.what, func(t *testing.T) {
			for _, p := range packages(t) {
				if !ban.from(p.rel()) {
					continue
				}
				for _, f := range parse(t, &p, p.sources()) {
					f.imports(func(path string, spec *ast.ImportSpec) {
						if ban.banned(path) {
							t.Errorf("%s imports %s.\n%s", f.line(spec), path, ban.why)
						}
					})
				}
			}
		})
	}
}

// TestBannedDependencies looks at all that is linked, not only at what is imported here.
func TestBannedDependencies(t *testing.T) {
	for _, p := range packages(t) {
		for _, ban := range bans {
			if !ban.linked || !ban.from(p.rel()) {
				continue
			}
			for _, dep := range p.Deps {
				if ban.banned(dep) {
					t.Errorf("%s depends on %s, through another package.\n%s", p.rel(), dep, ban.why)
				}
			}
		}
	}
}

// dataplaneOf returns the dataplane that a package is a part of, empty for other packages.
func dataplaneOf(path string) string {
	rel := strings.TrimPrefix(path, module+"/")
	if in(rel, "internal/winkernel") {
		return "internal/winkernel"
	}
	if parts := strings.Split(rel, "/"); parts[0] == "backend" && len(parts) > 1 && rel != path {
		return parts[0] + "/" + parts[1]
	}
	return ""
}

func TestBackendsDoNotImportEachOther(t *testing.T) {
	for _, p := range packages(t) {
		own := dataplaneOf(p.ImportPath)
		if own == "" {
			continue
		}
		for _, dep := range p.Deps {
			if to := dataplaneOf(dep); to != "" && to != own {
				t.Errorf("%s depends on %s.\nLaw 1: a backend never imports another one. Each must be removable, and a change of one must "+
					"not need a test of all; what two of them share belongs into package backend or internal/.", p.rel(), to)
			}
		}
	}
}

// pureStandard are the only packages of the standard library that a pure package may import: none of them can wait, look at a clock, log,
// or reach the world outside. Of package time, values may be used; see callsPure.
var pureStandard = []string{
	"bytes", "cmp", "crypto/sha256", "encoding/binary", "errors", "fmt", "hash/maphash", "iter", "maps", "math", "math/bits", "net/netip",
	"slices", "sort", "strconv", "strings", "time", "unicode/utf8", "unique",
}

// purePackages are the packages that wait for nothing, with the reason.
var purePackages = map[string]string{
	"brain": whyPure, "model": whyPure, "state": whyPure, "backend/nftables/internal/ruleset": whyRuleset,
	"backend/nftables/internal/least": whyRuleset, "backend/nftables/internal/ejection": whyRuleset,
	"internal/ebpf/plan": whyRuleset, "internal/edge/plan": whyRuleset, "backend/iptables/internal/rules": whyRuleset, "backend/ipvs/internal/plan": whyRuleset,
	"backend/userspace/internal/plan": whyRuleset, "backend/userspace/internal/balance": whyRuleset, "internal/winkernel/internal/plan": whyRuleset,
}

const whyPure = `
Law: the brain is pure. The same objects give the same record everywhere and always: that is what lets it be tested against
an oracle in 50,000 random histories, run for many nodes in one process, and be embedded without surprises. Whatever waits,
measures time, logs or does I/O belongs into the store or the caller.`

const whyRuleset = `
Law: what plans a dataplane's tables is pure, so that every plan can be made and checked in a test without a kernel. What
it needs from the kernel is given to it as values or by an interface of its own.`

func TestPurePackages(t *testing.T) {
	makefile := pureOfMakefile(t)
	found := 0
	for _, p := range packages(t) {
		why, ok := purePackages[p.rel()]
		if !ok {
			continue
		}
		found++
		for _, f := range parse(t, &p, p.sources()) {
			f.imports(func(path string, spec *ast.ImportSpec) {
				switch {
				case slices.Contains(pureStandard, path) || strings.HasPrefix(path, module+"/") || path == "github.com/tidwall/btree": // an ordered map
				case in(p.rel(), "state", "model") && path == "context": // in the signatures of Feed and Source
				default:
					t.Errorf("%s imports %s.%s", f.line(spec), path, why)
				}
			})
			callsPure(t, f, why)
		}
		for _, f := range parse(t, &p, slices.Concat(p.TestGoFiles, p.XTestGoFiles)) {
			testsPure(t, f)
		}
		if !strings.Contains(makefile, " "+p.rel()+" ") {
			t.Errorf("PURE in the Makefile does not have %s", p.rel())
		}
	}
	if found != len(purePackages) {
		t.Errorf("found %d of %d packages", found, len(purePackages))
	}
}

// pureOfMakefile returns the packages whose tests run without the race detector, each with a space on both sides.
func pureOfMakefile(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\nPURE := $(addprefix "+module+"/,")
	list, _, _ = strings.Cut(list, ")")
	names := strings.Fields(strings.ReplaceAll(list, "\\\n", " "))
	if len(names) != len(purePackages) {
		t.Errorf("PURE in the Makefile has %d packages, and %d are pure: %q", len(names), len(purePackages), names)
	}
	return " " + strings.Join(names, " ") + " "
}

// testsPure complains of a test that runs next to another goroutine of the package. Tests of pure packages run without the race detector.
func testsPure(t *testing.T, f *file) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s starts a goroutine: the race detector does not look at tests of pure packages", f.line(n))
		case *ast.SelectorExpr:
			if n.Sel.Name == "Parallel" || n.Sel.Name == "RunParallel" {
				t.Errorf("%s runs tests in parallel: the race detector does not look at tests of pure packages", f.line(n))
			}
		}
		return true
	})
}

// callsPure complains of a file that asks for the time, starts a goroutine, uses a channel, or talks to the kernel.
func callsPure(t *testing.T, f *file, why string) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && x.Name == "time" && !slices.Contains([]string{"Time", "Duration", "Second", "Millisecond", "Minute", "Hour", "ParseDuration"}, n.Sel.Name) ||
				ok && x.Name == "nft" && slices.Contains([]string{"Conn", "Dial", "Monitor", "OpenMonitor"}, n.Sel.Name) ||
				ok && x.Name == "ipset" && slices.Contains([]string{"Conn", "Open"}, n.Sel.Name) {
				t.Errorf("%s uses %s.%s.%s", f.line(n), x.Name, n.Sel.Name, why)
			}
		case *ast.InterfaceType:
			return false // what others implement
		case *ast.GoStmt:
			t.Errorf("%s starts a goroutine.%s", f.line(n), why)
		case *ast.ChanType:
			t.Errorf("%s uses a channel.%s", f.line(n), why)
		}
		return true
	})
}
