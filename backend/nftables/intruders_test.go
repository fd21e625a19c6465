//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/repairs"
)

// fakeMonitor reports what is sent to it.
type fakeMonitor struct {
	changes   chan nft.Change
	listening atomic.Bool
	fails     bool
}

func (m *fakeMonitor) Listen(on bool) error {
	if m.fails {
		return errors.New("no subscription")
	}
	m.listening.Store(on)
	return nil
}

func (m *fakeMonitor) Next() (nft.Change, error) {
	c, ok := <-m.changes
	if !ok {
		return nft.Change{}, errors.New("closed")
	}
	return c, nil
}

func (m *fakeMonitor) Close() error {
	close(m.changes)
	return nil
}

// TestIntruders goes through some repairs: now and then one, which is nobody's fault, and many.
func TestIntruders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := &fakeMonitor{changes: make(chan nft.Change)}
		i := newIntruders(slog.New(slog.NewTextHandler(&log, nil)), 7, m)
		repair := func(listening bool, fault string) {
			t.Helper()
			i.repaired()
			synctest.Wait()
			if m.listening.Load() != listening {
				t.Errorf("it listens: %v", m.listening.Load())
			}
			switch err := i.fault(); {
			case fault == "" && err != nil:
				t.Errorf("a fault: %v", err)
			case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
				t.Errorf("the fault is %v, want %q", err, fault)
			}
		}
		for range 5 {
			repair(false, "")
			time.Sleep(repairs.Window + time.Second)
		}
		repair(false, "")
		repair(true, "")
		time.Sleep(listenTime + time.Second)
		if m.listening.Load() {
			t.Error("it listens long after the last repair")
		}
		repair(true, "repaired 3 times within 5m0s, last at 00:26:06: find the process")
		m.changes <- nft.Change{Port: 7, PID: 70, Process: "ourselves"}
		repair(true, "find the process")
		for range 3 {
			m.changes <- nft.Change{Port: 8, PID: 80, Process: "nft"}
		}
		repair(true, `process "nft" changes them, with PID 80`)
		time.Sleep(listenTime - time.Second)
		repair(true, `process "nft"`)
		time.Sleep(listenTime - time.Second)
		if !m.listening.Load() {
			t.Error("it does not listen while repairs go on")
		}
		time.Sleep(repairs.Window)
		if err := i.fault(); err != nil || m.listening.Load() {
			t.Errorf("long after the last repair: %v, and it listens: %v", err, m.listening.Load())
		}
		m.fails = true
		repair(false, "")
		repair(false, "")
		repair(false, "find the process")
		if err := i.close(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "another process changes the tables"); n != 1 || !strings.Contains(log.String(), "process=nft pid=80") {
			t.Errorf("it was reported %d times, want once:\n%s", n, log.String())
		}
	})
}

// TestIntruderIsNamed has the nft program take elements away again and again.
func TestIntruderIsNamed(t *testing.T) {
	ns := newNS(t)
	b := newSharedBackend(t, ns, Options{})
	apply(t, b, full(someServices()...))
	for range repairs.Threshold {
		if faults := b.Faults(); len(faults) > 0 {
			t.Errorf("too early: %v", faults)
		}
		nftCommand(t, ns, "flush set ip "+tableName+" "+"hairpin")
		disturbed(t, b)
		if r := verify(t, b); r.Repaired == 0 {
			t.Fatalf("Verify: %+v", r)
		}
		b.guard.spent(0) // how soon the next change is looked into is a matter of cost
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		faults := b.Faults()
		if len(faults) == 1 && strings.Contains(faults[0].Error(), `process "nft" changes them, with PID `) {
			t.Log(faults[0])
			return
		}
		if time.Now().After(end) {
			t.Fatalf("faults are %v", faults)
		}
	}
}
