package config

import (
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func TestUserspace(t *testing.T) {
	c := defaultUserspace()
	if errs := c.validate("userspace"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.Listen = []string{"127.0.0.1:8080=10.96.0.10:80/tcp", "[::1]:53=[::]:30053/udp"}
	if errs := c.validate(""); len(errs) > 0 {
		t.Errorf("errors of listen: %v", errs)
	}
	if l, err := ParseListen(c.Listen[1]); err != nil || l.At.Port() != 53 || l.Protocol != state.UDP || !l.Frontend.Addr().IsUnspecified() {
		t.Errorf("%s is read as %v: %v", c.Listen[1], l, err)
	}
	for _, text := range []string{"", "127.0.0.1:8080", "127.0.0.1:8080=web/tcp", "127.0.0.1:8080=10.96.0.10:80/sctp", "127.0.0.1:0=10.96.0.10:80/tcp"} {
		if l, err := ParseListen(text); err == nil {
			t.Errorf("%q is read as %v", text, l)
		}
	}
	c.UDPIdleTimeout.Duration = 0
	errs := c.validate("userspace")
	if len(errs) != 1 || errs[0].Path != "userspace.udpIdleTimeout" {
		t.Errorf("errors = %v", errs)
	}
}
