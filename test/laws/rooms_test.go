package laws

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testRooms hold yardsticks and tools. Only tests, tools and the laboratory import them.
var testRooms = []string{"test", "lab", "conformance"}

// TestProductImportsNoTestRoom looks at everything that a product package links.
func TestProductImportsNoTestRoom(t *testing.T) {
	for _, p := range packages(t) {
		if in(p.rel(), testRooms...) || p.isProgram() {
			continue
		}
		for _, dep := range p.Deps {
			if to, ours := strings.CutPrefix(dep, module+"/"); ours && in(to, testRooms...) {
				t.Errorf("%s depends on %s.\nLaw: product code imports no test room. What both need belongs into a package of the product.", p.rel(), to)
			}
		}
	}
}

// TestNodeLinksWhatItNeeds: the program of a node contains package node, sources and the flags of cmd/switchyard, and nothing for other places.
func TestNodeLinksWhatItNeeds(t *testing.T) {
	sources := []string{"k8s.io/client-go", module + "/source/kube", module + "/internal/source/file", module + "/internal/source/relay"}
	for rel, law := range map[string]struct {
		trees []string
		why   string
	}{
		"node":           {sources, "the runtime of a node links no source: the caller passes one."},
		"cmd/switchyard": {nil, "the program of a node links no line of the laboratory, the yardsticks and the examples: they belong into switchyard-lab."},
	} {
		i := slices.IndexFunc(packages(t), func(p pkg) bool { return p.rel() == rel })
		if i < 0 {
			t.Errorf("there is no package %s", rel)
			continue
		}
		deps := packages(t)[i].Deps
		t.Logf("%s links %d packages", rel, len(deps))
		for _, dep := range deps {
			to, ours := strings.CutPrefix(dep, module+"/")
			if in(dep, law.trees...) || ours && in(to, append([]string{"examples"}, testRooms...)...) {
				t.Errorf("%s depends on %s.\nLaw: %s", rel, dep, law.why)
			}
		}
	}
}

// TestProgramsLinkOneDataplane looks at the programs of single dataplanes on the systems that they are for.
func TestProgramsLinkOneDataplane(t *testing.T) {
	const why = `
Law: a program of one dataplane links that dataplane, the one below it, and the client of the node-local API. A distributor who ships one dataplane
ships, and follows the vulnerabilities of, no other one.`
	base := []string{"backend/nftables"}
	for name, own := range map[string][]string{
		"nftables": base, "ebpf": append([]string{"backend/ebpf"}, base...), "iptables": {"backend/iptables"},
		"ipvs": append([]string{"backend/ipvs"}, base...), "userspace": append([]string{"backend/userspace"}, base...), "winkernel": {"internal/winkernel"},
	} {
		system := "linux"
		if name == "winkernel" {
			system = "windows"
		}
		cmd := exec.Command("go", "list", "-deps", "./cmd/switchyard-"+name)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var linked []string
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			if to := dataplaneOf(dep); to != "" && !slices.Contains(linked, to) {
				linked = append(linked, to)
			}
			to, ours := strings.CutPrefix(dep, module+"/")
			if ours && in(to, "brain", "config", "examples", "kubeconv", "lab", "node", "server", "source", "store", "test") ||
				in(dep, "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go") {
				t.Errorf("switchyard-%s links %s.%s", name, dep, why)
			}
			if ours && in(to, "internal/ebpf") && name != "ebpf" {
				t.Errorf("switchyard-%s links %s.%s", name, dep, why)
			}
		}
		slices.Sort(linked)
		slices.Sort(own)
		if !slices.Equal(linked, own) {
			t.Errorf("switchyard-%s links the dataplanes %q, want %q.%s", name, linked, own, why)
		}
	}
}

// room is the first element of a package's path, or the first two in internal, whose packages have nothing else in common.
func room(rel string) string {
	parts := strings.Split(rel, "/")
	if parts[0] == "internal" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// TestRoomsHaveNoCycle: if a package of one room imports one of another, no import leads back, through any packages.
func TestRoomsHaveNoCycle(t *testing.T) {
	imports := make(map[string][]string) // of rooms
	for _, p := range packages(t) {
		for _, path := range p.Imports {
			to, ours := strings.CutPrefix(path, module+"/")
			if from := room(p.rel()); ours && room(to) != from && !slices.Contains(imports[from], room(to)) {
				imports[from] = append(imports[from], room(to))
			}
		}
	}
	for start := range imports {
		seen, queue := map[string]bool{}, slices.Clone(imports[start])
		for len(queue) > 0 {
			r := queue[0]
			queue = queue[1:]
			if r == start {
				t.Errorf("the imports of room %s lead back to it.\nLaw: there is an order of rooms, and no import leads up.", start)
				break
			}
			if !seen[r] {
				seen[r] = true
				queue = append(queue, imports[r]...)
			}
		}
	}
}

// maxShare is the largest part of all lines of Go that one room may hold, in percent.
const maxShare = 30

func TestRoomSizesAreBounded(t *testing.T) {
	lines, all := make(map[string]int), 0
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.rel(), "/")
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			n := bytes.Count(text, []byte("\n"))
			lines[top] += n
			all += n
		}
	}
	for top, n := range lines {
		t.Logf("%s: %d lines, %.1f%%", top, n, 100*float64(n)/float64(all))
		if 100*n > maxShare*all {
			t.Errorf("room %s holds %d of %d lines, over %d%%.\nLaw: a house is rooms, each with a purpose.", top, n, all, maxShare)
		}
	}
}

var tableEntry = regexp.MustCompile(`\[([\w./-]+)\]\(`)

// TestNoArrowLeadsUp reads the order of rooms from the table in ARCHITECTURE.md.
func TestNoArrowLeadsUp(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	order, rooms := make(map[string]int), []string{""}
	for line := range strings.Lines(string(text)) {
		first, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !isRow {
			continue
		}
		if name, isRoom := strings.CutPrefix(first, "**"); isRoom {
			rooms = append(rooms, strings.TrimSuffix(name, "**"))
		}
		for _, m := range tableEntry.FindAllStringSubmatch(first, -1) {
			order[m[1]] = len(rooms) - 1
		}
	}
	roomOf := func(rel string) int { // 0 if no entry has it
		for ; rel != "."; rel = path.Dir(rel) {
			if n := order[rel]; n > 0 {
				return n
			}
		}
		return 0
	}
	for _, p := range packages(t) {
		from := roomOf(p.rel())
		if from == 0 {
			t.Errorf("package %s is in no room of ARCHITECTURE.md.", p.rel())
		}
		for _, path := range p.Imports {
			if to, ours := strings.CutPrefix(path, module+"/"); ours && roomOf(to) > from {
				t.Errorf("%s (%s) imports %s (%s).\nLaw: a package imports what stands above it in the table of ARCHITECTURE.md, never what stands below.",
					p.rel(), rooms[from], to, rooms[roomOf(to)])
			}
		}
	}
}
