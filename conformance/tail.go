//go:build linux

package conformance

import (
	"strings"
	"sync"
)

// maxTail is how many bytes of output are kept.
const maxTail = 4 << 10

// tail keeps the end of the bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
	cut  bool // something was written before
}

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p[max(0, len(p)-maxTail):]...)
	if extra := len(t.data) - maxTail; extra > 0 {
		t.data, t.cut = append(t.data[:0], t.data[extra:]...), true
	}
	return len(p), nil
}

// String returns the output under a heading, and nothing if there is none.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.data) == 0 {
		return ""
	}
	text := "the dataplane printed:\n"
	if t.cut {
		text += "…"
	}
	return text + strings.TrimSpace(string(t.data)) + "\n"
}
