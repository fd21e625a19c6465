package ipvs

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

func TestServersComeBack(t *testing.T) {
	for _, s := range []Server{
		{Protocol: 6, Addr: netip.MustParseAddrPort("10.96.0.10:80"), Scheduler: "rr"},
		{Protocol: 17, Addr: netip.MustParseAddrPort("[fd00::10]:53"), Scheduler: "wlc", Flags: 1, Timeout: 10800},
		{Mark: 7, Addr: netip.MustParseAddrPort("0.0.0.0:0"), Scheduler: "sh"},
	} {
		got, err := decodeServer(s.encode(true))
		if err != nil || got != s {
			t.Errorf("%v comes back as %+v (%v)", &s, got, err)
		}
	}
}

func TestDestsComeBack(t *testing.T) {
	for _, d := range []Dest{
		{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), Weight: 1},
		{Addr: netip.MustParseAddrPort("[fd00::1]:8080")},
	} {
		got, err := decodeDest(d.Addr.Addr().Is6(), d.encode(true))
		if err != nil || got != d {
			t.Errorf("%v comes back as %+v (%v)", d, got, err)
		}
	}
}

// TestServerAsSent has the bytes of one message, on a little-endian machine, attribute by attribute.
func TestServerAsSent(t *testing.T) {
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	s := Server{Protocol: 6, Addr: netip.MustParseAddrPort("10.96.0.10:80")}
	want := []byte{
		48, 0, 1, 0,
		6, 0, 1, 0, 2, 0, 0, 0,
		6, 0, 2, 0, 6, 0, 0, 0,
		20, 0, 3, 0, 10, 96, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		6, 0, 4, 0, 0, 80, 0, 0,
	}
	if got := s.encode(false); !bytes.Equal(got, want) {
		t.Errorf("sends % x\nwant  % x", got, want)
	}
}

func TestTimeouts(t *testing.T) {
	got, err := decodeTimeouts(Timeouts{TCP: 900 * time.Second, UDP: 1500 * time.Millisecond}.encode())
	if want := (Timeouts{TCP: 900 * time.Second, UDP: 2 * time.Second}); err != nil || got != want {
		t.Errorf("timeouts come back as %+v (%v), want %+v", got, err, want)
	}
	if b := (Timeouts{}).encode(); len(b) != 0 {
		t.Errorf("% x is sent though nothing is to change", b)
	}
}

// FuzzDecode: what the kernel sends is not trusted to be whole.
func FuzzDecode(f *testing.F) {
	s := Server{Protocol: 6, Addr: netip.MustParseAddrPort("10.96.0.10:80"), Scheduler: "rr"}
	f.Add(s.encode(true))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeServer(b)
		_, _ = decodeDest(true, b)
		_, _ = decodeTimeouts(b)
	})
}
