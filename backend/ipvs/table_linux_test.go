package ipvs

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

var update = flag.Bool("update", false, "write testdata/table.nft")

// TestGoldenTable: what nft shows of the tables is what operators read.
func TestGoldenTable(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the program nft")
	}
	n := newNode(t, Options{LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}})
	n.full(web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080"))
	var got []byte
	n.must(n.ns.Do(func() (err error) {
		for _, family := range []string{"ip", "ip6"} {
			out, listErr := exec.Command("nft", "list", "table", family, "switchyard-ipvs").CombinedOutput()
			got, err = append(got, out...), listErr
			if err != nil {
				return err
			}
		}
		return nil
	}))
	lines := withoutOwner(string(got))
	path := filepath.Join("testdata", "table.nft")
	if *update {
		n.must(os.WriteFile(path, []byte(lines), 0o600))
	}
	want, err := os.ReadFile(path)
	n.must(err)
	if lines != string(want) {
		t.Errorf("nft shows\n%s\nwant what %s has; -update writes it", lines, path)
	}
}

// withoutOwner leaves out the flags and the process that only some kernels have.
func withoutOwner(list string) string {
	var kept []string
	for line := range strings.Lines(list) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "flags ") {
			continue
		}
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " # progname")
		kept = append(kept, line+"\n")
	}
	return strings.Join(kept, "")
}
