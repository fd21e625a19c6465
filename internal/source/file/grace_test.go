//go:build unix

package file

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/model"
)

// bench is a state with a directory, and a clock that the test sets.
type bench struct {
	*files
	state *state
	now   time.Time
	sink  map[model.Ref]string
}

func newBench(t *testing.T) *bench {
	return &bench{
		files: &files{t: t, dir: t.TempDir()}, state: newState(slog.New(slog.DiscardHandler), defaultGrace), now: time.Unix(1e9, 0), sink: map[model.Ref]string{},
	}
}

// read reads path after a while, and checks the objects in force.
func (b *bench) read(path string, after time.Duration, want ...string) {
	b.t.Helper()
	b.now = b.now.Add(after)
	tree, err := manifest.OpenTree(b.path(path))
	if err != nil {
		b.state.pathGone(err)
	} else {
		b.state.update(tree, b.now)
		tree.Close()
	}
	set, deleted := b.state.changes()
	for _, o := range set {
		b.sink[o.Ref()] = fmt.Sprintf("%s:%d", o.Ref().Name, o.(*model.Service).Ports[0].Port)
	}
	for _, ref := range deleted {
		delete(b.sink, ref)
	}
	got := []string{}
	for _, text := range b.sink {
		got = append(got, text)
	}
	slices.Sort(got)
	if diff := gocmp.Diff(append([]string{}, want...), got); diff != "" {
		b.t.Fatalf("should be in force (-), is (+):\n%s\nproblems: %v", diff, b.state.problems())
	}
	if due := b.state.due; !due.IsZero() && !due.After(b.now) {
		b.t.Fatalf("the files are due since %v", b.now.Sub(due))
	}
}

// problems checks the problems. Paths are relative to the directory.
func (b *bench) problems(want ...string) {
	b.t.Helper()
	var got []string
	for _, p := range b.state.problems() {
		got = append(got, strings.ReplaceAll(p.Error(), b.dir+"/", ""))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		b.t.Fatalf("problems should be (-), are (+):\n%s", diff)
	}
}

const remedy = " in place, as after an unfinished write: keeping its last known good configuration until it has not changed for 10s; " +
	"finish the write, or replace or delete the file, which takes effect at once"

// TestShrunkInPlace empties and shortens a file like an unfinished write. Missing objects are withdrawn when the file
// has been unchanged for long enough.
func TestShrunkInPlace(t *testing.T) {
	ab := []string{service("a", 1), service("b", 1)}
	for title, c := range map[string]struct {
		text, problem string
		want          []string // in the end
	}{
		"emptied":          {"", "has lost all objects", nil},
		"one object less":  {service("a", 2), "has lost 1 of 2 objects, such as Service default/b,", []string{"a:2"}},
		"in another place": {service("b", 2) + service("c", 1), "has lost 1 of 2 objects, such as Service default/a,", []string{"b:2", "c:1"}},
		"cut off":          {service("a", 2) + strings.TrimSuffix(service("b", 2), "\n"), "has lost the end of its last line", []string{"a:2", "b:2"}},
	} {
		t.Run(title, func(t *testing.T) {
			b := newBench(t)
			both := []string{"a:1", "b:1"}
			b.write("a.yaml", ab...)
			b.read("", 0, both...)
			b.write("a.yaml", c.text)
			b.read("", 0, both...)
			b.problems("a.yaml: " + c.problem + remedy)
			if want := b.now.Add(defaultGrace); !b.state.due.Equal(want) {
				t.Errorf("due in %v", b.state.due.Sub(b.now))
			}
			b.read("", defaultGrace-1, both...)
			b.problems("a.yaml: " + c.problem + remedy)
			b.read("", 1, c.want...)
			b.problems()
			if !b.state.due.IsZero() {
				t.Error("due once more")
			}
		})
	}
}

// TestShrunkAndFinished has writes that continue. They may take longer than one step, and count at once when all
// objects are there.
func TestShrunkAndFinished(t *testing.T) {
	b := newBench(t)
	b.write("a.yaml", service("a", 1), service("b", 1))
	b.write("z.yaml", service("z", 1))
	b.read("", 0, "a:1", "b:1", "z:1")
	b.write("a.yaml")
	b.read("", 0, "a:1", "b:1", "z:1")
	b.write("a.yaml", service("b", 2))
	b.write("z.yaml", service("z", 2))
	b.read("", defaultGrace-1, "a:1", "b:1", "z:2")
	b.write("a.yaml", service("b", 2), "kind: ")
	b.read("", defaultGrace-1, "a:1", "b:1", "z:2")
	b.problems("a.yaml:6:1: Service b: kind: is given twice, first in line 3")
	b.read("", time.Hour, "a:1", "b:1", "z:2") // broken is broken
	b.write("a.yaml", service("b", 3))
	b.read("", 0, "a:1", "b:1", "z:2")
	b.write("a.yaml", service("b", 2), service("c", 2), service("a", 2))
	b.read("", 1, "a:2", "b:2", "c:2", "z:2")
	b.problems()
}

// TestReplacedOrDeleted checks what counts at once.
func TestReplacedOrDeleted(t *testing.T) {
	ab := []string{service("a", 1), service("b", 1)}
	for _, path := range []string{"", "a.yaml"} {
		t.Run(path, func(t *testing.T) {
			b := newBench(t)
			b.write("a.yaml", ab...)
			b.read(path, 0, "a:1", "b:1")
			b.replace("a.yaml", service("a", 1))
			b.read(path, 0, "a:1")
			b.replace("a.yaml")
			b.read(path, 0)
			b.write("a.yaml", ab...)
			b.read(path, 0, "a:1", "b:1")
			// The rename ends the wait, also if it brings the same text.
			b.write("a.yaml", service("a", 1))
			b.read(path, 0, "a:1", "b:1")
			b.replace("a.yaml", service("a", 1))
			b.read(path, 0, "a:1")
			b.problems()
			b.write("a.yaml", ab...)
			b.read(path, 0, "a:1", "b:1")
			b.check(os.Remove(b.path("a.yaml")))
			if path == "" {
				b.read(path, 0)
			} else {
				b.read(path, 0, "a:1", "b:1") // a path that vanishes altogether keeps its objects
			}
			b.write("a.yaml", service("b", 2)) // perhaps with the inode of before
			b.read(path, 0, "b:2")
			b.problems()
		})
	}
}

// TestPathVanishesDuringGrace has a path that vanishes while the source waits for its file.
func TestPathVanishesDuringGrace(t *testing.T) {
	b := newBench(t)
	b.write("a.yaml", service("a", 1))
	b.read("a.yaml", 0, "a:1")
	b.write("a.yaml")
	b.read("a.yaml", 0, "a:1")
	b.check(os.Remove(b.path("a.yaml")))
	b.read("a.yaml", 2*defaultGrace, "a:1")
	b.problems("a.yaml: cannot be read: no such file or directory; keeping last known good configuration until it is back", "a.yaml: has lost all objects"+remedy)
	b.write("a.yaml")
	b.read("a.yaml", 1)
	b.problems()
}

// TestNoGrace withdraws at once.
func TestNoGrace(t *testing.T) {
	b := newBench(t)
	b.state.grace = -1
	b.write("a.yaml", service("a", 1))
	b.read("", 0, "a:1")
	b.write("a.yaml")
	b.read("", 0)
	b.problems()
}

// TestFileIsReplacedByOtherKinds replaces a file by other kinds of files. It keeps its objects until it is gone, and the source
// never waits.
func TestFileIsReplacedByOtherKinds(t *testing.T) {
	for kind, swap := range map[string]func(file string) error{
		"a named pipe": func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"a directory":  func(file string) error { return os.Mkdir(file, 0o700) },
		"a socket": func(file string) error {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err == nil {
				t.Cleanup(func() { _ = syscall.Close(fd) })
				err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: file})
			}
			return err
		},
	} {
		for _, path := range []string{"", "a.yaml"} {
			t.Run(kind+" at "+path, func(t *testing.T) {
				b := newBench(t)
				b.dir, _ = os.MkdirTemp("", "file") // the path of a socket must not be long
				t.Cleanup(func() { _ = os.RemoveAll(b.dir) })
				b.write("a.yaml", service("a", 1), service("b", 1))
				b.read(path, 0, "a:1", "b:1")
				b.check(os.Remove(b.path("a.yaml")))
				b.check(swap(b.path("a.yaml")))
				for range 2 {
					b.read(path, time.Hour, "a:1", "b:1")
					problem := "a.yaml: cannot be read: it is " + kind + ": put a regular file in its place"
					if path != "" && kind != "a directory" {
						problem += "; keeping last known good configuration until it is back"
					}
					b.problems(problem)
				}
				b.check(os.Remove(b.path("a.yaml")))
				b.replace("a.yaml", service("a", 2))
				b.read(path, 0, "a:2")
				b.problems()
			})
		}
	}
}

// TestSwappedWhileRead swaps a file for a named pipe after it was listed.
func TestSwappedWhileRead(t *testing.T) {
	b := newBench(t)
	b.write("a.yaml", service("a", 1))
	b.read("", 0, "a:1")
	tree, err := manifest.OpenTree(b.dir)
	b.check(err)
	defer tree.Close()
	b.check(os.Remove(b.path("a.yaml")))
	b.check(syscall.Mkfifo(b.path("a.yaml"), 0o600))
	b.state.update(tree, b.now)
	if _, deleted := b.state.changes(); len(deleted) > 0 {
		t.Errorf("deleted %v", deleted)
	}
	b.problems("a.yaml: cannot be read: it is a named pipe: put a regular file in its place")
}

// TestWritesInPieces writes texts in place, in pieces of which any may be read, and renames others over the file. Objects change
// only when a text is finished, and go only if they are missing for the whole time.
func TestWritesInPieces(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 5))
		b := newBench(t)
		last := []string{"a:1"}
		b.write("f.yaml", service("a", 1))
		b.read("", 0, last...)
		for version := 2; version < 20; version++ {
			var text, more strings.Builder
			all := []string{}
			for _, name := range []string{"a", "b", "c", "d"} {
				of := fmt.Sprintf("%s:%d", name, version)
				if had := slices.ContainsFunc(last, func(l string) bool { return l[0] == name[0] }); had {
					text.WriteString(service(name, version))
					all = append(all, of)
				} else if r.IntN(2) == 0 {
					more.WriteString(service(name, version))
					all = append(all, of)
				}
			}
			slices.Sort(all)
			full := text.String() + more.String()
			switch r.IntN(3) {
			case 0: // pieces, and then all that there was, and more
				for n := r.IntN(20); n < len(full); n += 1 + r.IntN(60) {
					if n == 0 || full[n-1] != '\n' || n < text.Len()-len(service("a", version)) {
						b.write("f.yaml", full[:n])
						b.read("", defaultGrace-1, last...)
					}
				}
				b.write("f.yaml", full)
				b.read("", 1, all...)
				last = all
			case 1: // one object only, in place
				one := fmt.Sprintf("%c:%d", last[0][0], version)
				b.write("f.yaml", service(last[0][:1], version))
				if len(last) > 1 {
					b.read("", 1, last...)
				}
				b.read("", defaultGrace, one)
				last = []string{one}
			case 2: // one object only, at once
				one := fmt.Sprintf("e:%d", version)
				b.replace("f.yaml", service("e", version))
				b.read("", 1, one)
				b.replace("f.yaml", full)
				b.read("", 1, all...)
				last = all
			}
			b.problems()
		}
	}
}

// TestFollowsThroughTrouble runs a source while its files are emptied in place and swapped for named pipes, which nothing waits for.
func TestFollowsThroughTrouble(t *testing.T) {
	for _, path := range []string{"", "a.yaml"} {
		t.Run(path, func(t *testing.T) {
			l := newLab(t)
			l.write("a.yaml", service("a", 1))
			l.grace = 4 * quiet
			l.run(path, "a:1")
			l.write("a.yaml")
			l.expectLog("has lost all objects in place")
			l.expect(nil, []string{"a"})
			l.expectLog("valid again")
			l.expectProblems()
			l.write("a.yaml", service("a", 2))
			l.expect([]string{"a:2"}, nil)
			l.check(syscall.Mkfifo(l.path("pipe"), 0o600))
			l.check(os.Rename(l.path("pipe"), l.path("a.yaml")))
			l.expectLog("it is a named pipe: put a regular file in its place")
			l.replace("a.yaml", service("a", 3))
			l.expect([]string{"a:3"}, nil)
			l.expectLog("valid again")
			l.expectProblems()
		})
	}
}
