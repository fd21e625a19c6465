package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestUserspace: every figure of the relay is there, with the kernel's figure, and HAProxy's where it is
// installed.
func TestUserspace(t *testing.T) {
	netnstest.Need(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	dir := t.TempDir()
	if err := Userspace(t.Context(), r, UserspaceOptions{Rounds: 1, Slice: 100 * time.Millisecond, Held: 20, Out: dir}); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, x := range r.results {
		values[strings.TrimPrefix(x.Name, "userspace/")] = x.Value
	}
	ways := []string{wayDirect, wayKernel, wayRelay}
	if _, err := exec.LookPath("haproxy"); err == nil {
		ways = append(ways, wayHAProxy)
	} else if !strings.Contains(table.String(), "apt-get install haproxy") {
		t.Errorf("it does not say how to get HAProxy:\n%s", &table)
	}
	relayed := func(way string) bool { return way == wayRelay || way == wayHAProxy }
	for _, way := range ways {
		for _, row := range userspaceRows {
			if ofProcess := strings.HasSuffix(row.name, "-cpu") || strings.HasPrefix(row.name, "memory"); ofProcess && !relayed(way) || row.name == "datagrams" && way == wayHAProxy {
				continue
			}
			if v := values[row.name+"/"+way]; v <= 0 {
				t.Errorf("%s of %s is %v", row.name, way, v)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "userspace.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"| 100 streams, Gbit/s", "| UDP packets", "20 connections are open", "1 slices of 100 ms"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("userspace.md does not have %q:\n%s", part, text)
		}
	}
}
