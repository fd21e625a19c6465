//go:build linux

package nft

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
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
