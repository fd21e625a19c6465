package file

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// TestBrokenFileAtStart starts with a broken file. The valid objects of the files are delivered, but the set is incomplete until
// all files are fixed. A file that breaks later does not change that.
func TestBrokenFileAtStart(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", service("a", 1), "---\nkind: Service\n")
	l.write("b.yaml", "{")
	l.write("c.yaml", service("c", 1))
	var err error
	l.source, err = New(Options{Path: l.dir, Whole: true, Logger: slog.New(handler{slog.DiscardHandler, l.logs})})
	l.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { l.check(l.source.Run(ctx, l)) })
	t.Cleanup(func() { cancel(); done.Wait() })
	l.expect([]string{"a:1", "c:1"}, nil)
	l.expectLog("ERROR waiting until this file is fixed; keeping the state from before this start file=" + l.path("a.yaml"))

	l.write("a.yaml", service("a", 2))
	l.expect([]string{"a:2"}, nil)
	l.expectLog("ERROR waiting until this file is fixed; keeping the state from before this start file=" + l.path("b.yaml"))
	select {
	case u := <-l.updates:
		t.Fatalf("while b.yaml is broken, there came %+v", u)
	case <-time.After(4 * quiet):
	}
	l.write("b.yaml", service("b", 1))
	l.expect([]string{"b:1"}, nil)
	if u := l.next(); !u.complete {
		t.Fatalf("want completion, got %+v", u)
	}
	l.write("b.yaml", "{")
	l.expectLog("invalid manifest")
	l.write("c.yaml", service("c", 2))
	l.expect([]string{"c:2"}, nil)
}
