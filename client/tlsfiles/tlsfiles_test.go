//go:build unix

package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNotRegular replaces a file by a named pipe and by an endless file. The last configuration counts, without a wait,
// until a file is back.
func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) {
		check(os.WriteFile(file+".new", []byte(text), 0o600))
		check(os.Rename(file+".new", file))
	}
	compose := func(contents [][]byte) (*tls.Config, error) { return &tls.Config{ServerName: string(contents[0])}, nil }
	write("one")
	var log bytes.Buffer
	c, err := New(slog.New(slog.NewTextHandler(&log, nil)), compose, file)
	check(err)
	current := func(want, logged string) {
		t.Helper()
		if got := c.Current().ServerName; got != want {
			t.Errorf("the configuration is %q, want %q", got, want)
		}
		if n := strings.Count(log.String(), "\n"); !strings.Contains(log.String(), logged) || (n > 0) != (logged != "") {
			t.Errorf("want a message about %q, got %s", logged, log.String())
		}
		log.Reset()
	}
	check(os.Remove(file))
	check(syscall.Mkfifo(file, 0o600))
	current("one", file+": it is a named pipe: put a regular file in its place")
	current("one", "")
	write("two")
	current("two", "")
	check(os.Truncate(file, 1<<40))
	current("two", "it has more than 8388608 bytes")
	write("three")
	current("three", "")
}
