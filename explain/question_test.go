package explain

import (
	"strings"
	"testing"
)

// TestQuestionsAreRead: each form is read, and what is none of them is refused with the forms that there are.
func TestQuestionsAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"pod/shop/web": "", "pod/web": "", "node": "", "outside": "", "10.0.0.1": "", "fd00::1": "", "::ffff:10.0.0.1": "",
		"": "is not pod/NAMESPACE/NAME, node", "pod/": "is not NAMESPACE/NAME", "pod/a/b/c": "is not NAMESPACE/NAME", "web": "is not pod/", "fe80::1%eth0": "is not pod/",
	} {
		_, err := ParseFrom(text)
		check(t, "FROM "+text, err, want)
	}
	for text, want := range map[string]string{
		"svc/shop/db": "", "service/shop/db": "", "svc/db:pg": "", "svc/shop/db:53/udp": "", "10.0.0.1:80": "", "10.0.0.1:53/UDP": "", "[fd00::1]:80/sctp": "",
		"": "is not svc/", "svc/": "is not NAMESPACE/NAME", "svc/db:": "no port behind it", "svc/db:0": "no port behind it", "10.0.0.1": "with the port", "10.0.0.1:0": "with the port",
		"10.0.0.1:80/icmp": "answer no ping", "svc/db:80/quic": "is none of tcp", "fd00::1:80": "with the port",
	} {
		_, err := ParseTo(text)
		check(t, "TO "+text, err, want)
	}
	if f, err := ParseFrom("::ffff:10.0.0.1"); err != nil || f.Addr().String() != "10.0.0.1" {
		t.Errorf("a mapped address is %v, %v", f.Addr(), err)
	}
}

func check(t *testing.T, question string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", question, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want %q", question, err, want)
	}
}
