//go:build linux

package nft

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/test/netns"
)

// TestMonitor reports who commits what.
func TestMonitor(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	var m *Monitor
	if err := ns.Do(func() (err error) { m, err = OpenMonitor(testTable, Table{IPv6, "test"}); return err }); err != nil {
		t.Fatal(err)
	}
	commit(t, c, func(b *Batch) { b.AddTable(testTable) }) // nobody listens
	if err := m.Listen(true); err != nil {
		t.Fatal(err)
	}
	next := func(want ...Table) Change {
		t.Helper()
		change, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(change.Tables, want) {
			t.Errorf("tables %v have changed, want %v", change.Tables, want)
		}
		return change
	}
	commit(t, c, func(b *Batch) { b.AddTable(Table{IPv4, "another"}) })
	commit(t, c, func(b *Batch) {
		b.AddTable(Table{IPv6, "test"})
		b.AddSet(testTable, &testMap)
	})
	port, err := c.Port()
	if err != nil {
		t.Fatal(err)
	}
	if ours := next(Table{IPv6, "test"}, testTable); ours.Port != port || ours.PID == 0 || ours.Process == "" {
		t.Errorf("a commit of port %d is reported as %+v", port, ours)
	}
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft tool is not installed")
	}
	if err := ns.Do(func() error {
		return exec.Command(path, "add element ip test m { 192.0.2.1 . 80 : 192.0.2.2 . 81 }").Run()
	}); err != nil {
		t.Fatal(err)
	}
	if theirs := next(testTable); theirs.Port == port || theirs.PID == 0 || theirs.Process != "nft" {
		t.Errorf("a commit of nft is reported as %+v", theirs)
	}
	if err := m.Listen(false); err != nil {
		t.Fatal(err)
	}
	commit(t, c, func(b *Batch) { b.DeleteTable(testTable) })
	ended := make(chan error)
	go func() {
		_, err := m.Next()
		ended <- err
	}()
	m.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestMonitorLosesReports: commits larger than the socket's buffer lose reports, and reports of later commits still
// come.
func TestMonitorLosesReports(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	var m *Monitor
	if err := ns.Do(func() (err error) { m, err = OpenMonitor(testTable); return err }); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Listen(true); err != nil {
		t.Fatal(err)
	}
	another := Table{IPv4, "another"}
	fill := func() {
		t.Helper()
		commit(t, c, func(b *Batch) {
			b.AddTable(another)
			for i := range 10_000 {
				b.AddChain(another, &Chain{Name: fmt.Sprint("c", i)})
			}
		})
		commit(t, c, func(b *Batch) { b.DeleteTable(another) })
	}
	for rounds := 0; drops(t, ns) == 0; rounds++ {
		if rounds == 20 {
			t.Fatalf("nothing is lost after %d commits", 2*rounds)
		}
		fill()
	}
	reports := make(chan error)
	go func() {
		_, err := m.Next()
		reports <- err
	}()
	for range 100 { // commits before Next has read everything may also be lost
		commit(t, c, func(b *Batch) { b.AddTable(testTable) })
		commit(t, c, func(b *Batch) { b.DeleteTable(testTable) })
		select {
		case err := <-reports:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("later commits are not reported")
}

// drops returns how many messages the netlink sockets of a namespace have lost.
func drops(t *testing.T, ns *netns.NS) (sum int) {
	t.Helper()
	var text []byte
	if err := ns.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/netlink"); return err }); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		fields := strings.Fields(line)
		if i == 0 {
			if len(fields) < 9 || fields[8] != "Drops" {
				t.Fatalf("unknown fields: %s", line)
			}
			continue
		}
		n, err := strconv.Atoi(fields[8])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
