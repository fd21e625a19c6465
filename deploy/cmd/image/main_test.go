package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// An archive may be piped to another program through a FIFO, which must stay one.
func TestBuildWritesIntoAFIFO(t *testing.T) {
	dir := t.TempDir()
	elf := make([]byte, 64) // the header of an ELF file for x86-64, little-endian
	copy(elf, "\x7fELF\x02\x01\x01")
	elf[16], elf[18], elf[20] = 2, 62, 1
	for _, program := range []string{"switchyard", "switchyard-lab"} {
		if err := os.WriteFile(filepath.Join(dir, program), elf, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "image.tar")
	if err := syscall.Mkfifo(out, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan int)
	go func() {
		defer close(read)
		f, err := os.Open(out)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		n, _ := io.Copy(io.Discard, f)
		read <- int(n)
	}()
	if _, err := build(out, "localhost/switchyard:v1", false, "", []string{dir}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(out); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Fatalf("the FIFO is now %v, %v", info, err)
	}
	if n := <-read; n < 1024 {
		t.Errorf("the reader got %d bytes", n)
	}
}
