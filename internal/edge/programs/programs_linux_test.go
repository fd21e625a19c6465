package programs

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestVerifier: this kernel takes the programs, with all settings.
func TestVerifier(t *testing.T) {
	for _, s := range []Settings{
		{Port: 7635, Mark: 1 << 13, TableSize: 1021, Slots: 1021, Frontends: 1024},
		{Port: 1, Mark: 1 << 31, MTU: 1336, TableSize: 16381, Slots: 16381, Frontends: 1024, XDP: true},
	} {
		c, err := Load(s)
		if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%+v", err)
		}
		for name, p := range c.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := info.VerifiedInstructions()
			t.Logf("%s: %d instructions verified", name, n)
		}
		if (c.Programs[driver] != nil) != s.XDP {
			t.Errorf("%+v: the program for drivers is there: %v", s, c.Programs[driver] != nil)
		}
		c.Close()
	}
}

// TestNumbers: both halves have the same sizes, and each action has a name.
func TestNumbers(t *testing.T) {
	spec, err := loadEdge()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{"nodes": MaxNodes, "ids": MaxNodes, "actions": uint32(Actions)} {
		if got := spec.Maps[name].MaxEntries; got != want {
			t.Errorf("%s has %d elements, want %d", name, got, want)
		}
	}
	var names []string
	for a := range Actions {
		if a.String() == "" || slices.Contains(names, a.String()) {
			t.Errorf("action %d is named %q", a, a)
		}
		names = append(names, a.String())
	}
	for _, a := range []Action{-1, Actions} {
		if a.String() != "unknown" {
			t.Errorf("action %d is named %q", int(a), a)
		}
	}
}

// TestAttachNeedsADevice: the error of a device that is gone says so.
func TestAttachNeedsADevice(t *testing.T) {
	c, err := Load(Settings{TableSize: 251, Slots: 251, Frontends: 16})
	if err != nil {
		t.Skip(err)
	}
	defer c.Close()
	if a, err := Attach(1<<30, c); !errors.Is(err, unix.ENODEV) || a != nil {
		t.Errorf("attached %+v: %v", a, err)
	}
	if err := supported(c.Programs[entry]); err != nil {
		t.Error(err)
	}
}
