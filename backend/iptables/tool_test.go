//go:build linux

package iptables

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

// script is a program of iptables that does what a line of the shell says.
func script(t *testing.T, line string) string {
	path := filepath.Join(t.TempDir(), "restore")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+line+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProgress: while a program of iptables is at work, its caller hears of it. Without that, the program below goes on until its time is up.
func TestProgress(t *testing.T) {
	inside, err := namespace.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	heard := filepath.Join(t.TempDir(), "heard")
	busy := &tool{variant: NFT, inside: inside}
	busy.paths = map[string]string{busy.name(state.IPv4, "restore"): script(t, "while [ ! -e "+heard+" ]; do :; done")}
	busy.onProgress = func() {
		if err := os.WriteFile(heard, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	if err := busy.restore(t.Context(), state.IPv4, ""); err != nil {
		t.Fatal(err)
	}
}

// TestStuckProgram: a program that waits does not use the processor.
func TestStuckProgram(t *testing.T) {
	cmd := exec.Command(script(t, "echo; exec cat"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	echo := func() { // once it has come back, cat waits for more, or is about to
		t.Helper()
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	echo()
	before := processorTimeOf(cmd.Process.Pid)
	if after := processorTimeOf(cmd.Process.Pid); after > before+1 {
		t.Errorf("it used the processor for %d ticks, then %d", before, after)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if ticks := processorTimeOf(cmd.Process.Pid); ticks != 0 {
		t.Errorf("it has ended, and used the processor for %d ticks", ticks)
	}
}
