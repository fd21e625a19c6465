package labcmd

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// TestPublicManifests runs the lab on manifests of public repositories, below the directory that SWITCHYARD_MANIFESTS names, as
// scripts/public-manifests.sh puts them there. testdata/public/list has the exit code of each: a failure must be the manifest's own.
func TestPublicManifests(t *testing.T) {
	dir := os.Getenv("SWITCHYARD_MANIFESTS")
	if dir == "" {
		t.Skip("SWITCHYARD_MANIFESTS names no directory; scripts/public-manifests.sh DIR makes one")
	}
	list, err := os.Open("testdata/public/list")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 4 {
			t.Fatalf("%q is not a repository, a path, a commit and an exit code", lines.Text())
		}
		repository, path, want := fields[0], fields[1], fields[3]
		t.Run(repository+"/"+path, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(t.Context(), []string{"lab", "--once", filepath.Join(dir, repository, path)}, &stdout, &stderr)
			reason, _, _ := strings.Cut(strings.ReplaceAll(stderr.String(), dir+"/", ""), "\n")
			t.Logf("%d %s", code, reason)
			if got := map[int]string{cli.ExitOK: "0", cli.ExitError: "1"}[code]; got != want {
				t.Errorf("exit code %d, want %s:\n%s%s", code, want, stdout.String(), stderr.String())
			}
		})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}
