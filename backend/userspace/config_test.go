package userspace

import (
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("userspace"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	if o, err := c.Options().withDefaults(); err != nil || o.Policy != Random || o.MaxConnections != defaultMaxConnections || o.Ejection.Failures != 0 {
		t.Errorf("the default stands for %+v: %v", o, err)
	}
	for files, want := range map[int][3]int{1 << 20: {1 << 16, 1 << 16, 256}, 20000: {4856, 9712, 256}, 576: {110, 220, 36}, 24: {2, 4, 1}} {
		o, _ := c.Options().withDefaults()
		o, pipes := o.within(files)
		if got := [3]int{o.MaxConnections, o.MaxUDPFlows, pipes}; got != want {
			t.Errorf("with %d files, there are so many connections, flows and pipes: %v, want %v", files, got, want)
		}
		if sum := 2*o.MaxConnections + o.MaxUDPFlows + 2*pipes + ownFiles; files > 100 && sum > files {
			t.Errorf("with %d files, the relay may have %d", files, sum)
		}
	}
	c.Listen = []string{"127.0.0.1:8080=10.96.0.10:80/tcp", "[::1]:53=[::]:30053/udp"}
	if o := c.Options(); len(c.Validate("")) > 0 || len(o.Listen) != 2 || o.Listen[0].At.Port() != 8080 || o.Listen[1].Protocol != state.UDP ||
		!o.Listen[1].Frontend.Addr().IsUnspecified() {
		t.Errorf("listen stands for %v (%v)", o.Listen, c.Validate(""))
	}
	for _, text := range []string{"", "127.0.0.1:8080", "127.0.0.1:8080=web/tcp", "127.0.0.1:8080=10.96.0.10:80/sctp", "127.0.0.1:0=10.96.0.10:80/tcp"} {
		if l, err := ParseListen(text); err == nil {
			t.Errorf("%q is read as %v", text, l)
		}
	}
	c.UDPIdleTimeout.Duration = 0
	errs := c.Validate("userspace")
	if len(errs) != 1 || errs[0].Path != "userspace.udpIdleTimeout" {
		t.Errorf("errors = %v", errs)
	}
}
