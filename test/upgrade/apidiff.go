package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/switchyard-net/switchyard"

// modules are the directories of the modules with a promise.
var modules = []string{".", "client"}

// Accepted is the file with the incompatible changes since the last release that its promise permits, relative to the root.
const Accepted = "test/upgrade/accepted.txt"

// Incompatible returns the incompatible changes in packages with a promise since the last release, and what is wrong about them. A change
// outside of [Accepted] is wrong, as is a change of the module client, and a line of Accepted without a change.
func Incompatible(ctx context.Context, root string) (changes, wrong []string, err error) {
	last, err := Last(root)
	if err != nil {
		return nil, nil, err
	}
	source, err := last.Source(ctx, root)
	if err != nil {
		return nil, nil, err
	}
	stability, err := os.ReadFile(filepath.Join(root, "docs", "stability.md"))
	if err != nil {
		return nil, nil, err
	}
	promised, err := promises(string(stability))
	if err != nil {
		return nil, nil, err
	}
	accepted, err := os.ReadFile(filepath.Join(root, Accepted))
	if err != nil {
		return nil, nil, err
	}
	apidiff, err := tool(ctx, root, "apidiff")
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range modules {
		all, err := moduleChanges(ctx, apidiff, filepath.Join(source, dir), filepath.Join(root, dir), path.Join(module, dir))
		if err != nil {
			return nil, nil, err
		}
		changes = append(changes, only(promised, dir, all)...)
	}
	return changes, judge(changes, string(accepted), last), nil
}

// moduleChanges lists the incompatible changes between two trees of a module, as apidiff writes them.
func moduleChanges(ctx context.Context, apidiff, before, after, module string) ([]string, error) {
	dir, err := os.MkdirTemp("", "apidiff-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	export := filepath.Join(dir, "before")
	if err := command(ctx, before, apidiff, "-m", "-w", export, module); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, apidiff, "-m", "-incompatible", export, module)
	cmd.Dir = after
	out, err := output(cmd)
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(out) {
		if change, isChange := strings.CutPrefix(strings.TrimSpace(line), "- "); isChange {
			list = append(list, change)
		}
	}
	return list, nil
}

// only returns the changes of packages with a promise, with the package's path in the repository in front of its symbol.
func only(promised []string, dir string, changes []string) (list []string) {
	for _, c := range changes {
		at, what := dir, c
		if gone, isPackage := strings.CutPrefix(c, "package "+module+"/"); isPackage {
			at, what, _ = strings.Cut(gone, ": ")
			what = ": " + what
		} else if rest, below := strings.CutPrefix(c, "./"); below {
			at, what, _ = strings.Cut(rest, ".") // the paths of packages have no dots
			at, what = path.Join(dir, at), "."+what
		} else {
			what = "." + what
		}
		if slices.Contains(promised, at) || ofClient(at) {
			list = append(list, at+what)
		}
	}
	return list
}

// ofClient reports whether something is in the module client.
func ofClient(path string) bool {
	rest, is := strings.CutPrefix(path, "client")
	return is && (rest == "" || strings.ContainsAny(rest[:1], "/.:"))
}

var quoted = regexp.MustCompile("`([a-z0-9/]+)`")

// promises reads the packages with a promise from the table in docs/stability.md.
func promises(stability string) ([]string, error) {
	_, section, _ := strings.Cut(stability, "\n## Go packages\n")
	section, _, found := strings.Cut(section, "\n| All other packages ")
	var list []string
	for line := range strings.Lines(section) {
		if cell, isRow := strings.CutPrefix(line, "| "); isRow {
			cell, _, _ = strings.Cut(cell, " |")
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				list = append(list, m[1])
			}
		}
	}
	if !found || len(list) < 10 {
		return nil, errors.New("docs/stability.md has no table of packages in its section Go packages")
	}
	return list, nil
}

// judge compares changes with those that are accepted.
func judge(changes []string, accepted string, last *Release) (wrong []string) {
	for line := range strings.Lines(accepted) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !slices.Contains(changes, line) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no such change since %s: remove the line: %s", Accepted, last.Version, line))
		}
	}
	for _, c := range changes {
		switch isAccepted := slices.Contains(strings.Split(accepted, "\n"), c); {
		case ofClient(c):
			wrong = append(wrong, "incompatible, and the module client only adds: "+c)
		case !isAccepted:
			wrong = append(wrong, fmt.Sprintf("incompatible with %s: %s", last.Version, c))
		}
	}
	return wrong
}
