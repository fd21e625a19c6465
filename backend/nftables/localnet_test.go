//go:build linux

package nftables

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestRouteLocalnetComesBack resets the sysctl behind a dataplane's back: verification sets it again, where it is needed.
func TestRouteLocalnetComesBack(t *testing.T) {
	sysctl := func(value string) netns.Sysctl {
		return netns.Sysctl{Path: "net/ipv4/conf/all/route_localnet", Value: value}
	}
	for name, test := range map[string]struct {
		prefix string
		want   string
	}{
		"NodePorts on loopback": {"127.0.0.0/8", "1"},
		"NodePorts elsewhere":   {"192.0.2.0/24", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			addDevice(t, ns, "192.0.2.1/24", "127.0.0.1/8")
			var log bytes.Buffer
			o := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
			o.NodePortAddresses = state.NodePortAddresses{CIDRs: []netip.Prefix{prefix(test.prefix)}}
			b := newBackend(t, ns, o)
			apply(t, b, full(everyKind("web", 1, 2, 0)))
			for i := range 2 {
				if err := ns.SetSysctls(sysctl("0")); err != nil {
					t.Fatal(err)
				}
				verify(t, b)
				var got []byte
				netnstest.Do(t, ns, func() (err error) {
					got, err = os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
					return err
				})
				if strings.TrimSpace(string(got)) != test.want {
					t.Errorf("route_localnet is %s after Verify %d, want %s", got, i, test.want)
				}
			}
			if n := strings.Count(log.String(), "switched off"); (n == 2) != (test.want == "1") {
				t.Errorf("%d of 2 resets were reported:\n%s", n, log.String())
			}
		})
	}
}
