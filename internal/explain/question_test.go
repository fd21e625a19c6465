package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestQuestionsAreRead: each form is read, and any other text is refused with a list of the forms.
func TestQuestionsAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"pod/shop/web": "", "pod/web": "", "node": "", "outside": "", "10.0.0.1": "", "fd00::1": "", "::ffff:10.0.0.1": "",
		"10.0.0.1:4000": "", "[fd00::1]:4000": "", "10.0.0.1:0": "maybe with a port", "10.0.0.1:70000": "maybe with a port", "[fe80::1%eth0]:80": "maybe with a port", "fd00::1:": "maybe with a port",
		"": "is not pod/NAMESPACE/NAME, node", "pod/": "is not NAMESPACE/NAME", "pod/a/b/c": "is not NAMESPACE/NAME", "web": "is not pod/", "fe80::1%eth0": "is not pod/",
	} {
		_, err := ParseFrom(text)
		check(t, "FROM "+text, err, want)
	}
	for text, want := range map[string]string{
		"svc/shop/db": "svc shop/db", "service/shop/db": "svc shop/db", "services/db": "svc default/db", "svc/db:pg": "svc default/db port pg",
		"svc/shop/db:53/udp": "svc shop/db port 53 UDP",
		"10.0.0.1:80":        "10.0.0.1:80 TCP", "10.0.0.1:53/UDP": "10.0.0.1:53 UDP", "[fd00::1]:80/sctp": "[fd00::1]:80 SCTP", "[::ffff:10.0.0.1]:80": "10.0.0.1:80 TCP",
		// Names in the cluster's DNS, which in a pod end with its own namespace.
		"db": "svc client/db", "db:pg": "svc client/db port pg", "db.shop": "svc shop/db", "db.shop:53/udp": "svc shop/db port 53 UDP", "DB.Shop.svc": "svc shop/db",
		"db.shop.svc.cluster.local.": "svc shop/db", "db-0.db.shop.svc.cluster.local:5432": "svc shop/db port 5432", "db.svc": "svc svc/db",
		// Pairs, in either order.
		"shop/db": "svc shop/db or db/shop", "shop/db:pg": "svc shop/db or db/shop port pg", "shop/db:53/udp": "svc shop/db or db/shop port 53 UDP",
		// URLs, with the port of their scheme.
		"http://db.shop/path?q#f": "svc shop/db port 80 TCP", "https://user@db.shop.svc.cluster.local": "svc shop/db port 443 TCP", "ws://db:8080": "svc client/db port 8080 TCP",
		"postgres://db.shop/shop": "svc shop/db", "udp://db.shop:53": "svc shop/db port 53 UDP", "http://10.0.0.1": "10.0.0.1:80 TCP", "https://[fd00::1]/": "[fd00::1]:443 TCP",
	} {
		to, err := ParseTo(text)
		if got := describe(to); err != nil || got != want {
			t.Errorf("TO %s is %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "is not svc/", "svc/": "is not NAMESPACE/NAME", "svc/db:": "no port behind it", "svc/db:0": "no port behind it", "10.0.0.1": "with the port", "10.0.0.1:0": "with the port",
		"10.0.0.1:80/icmp": "for ping, ask about one of them", "svc/db:80/quic": "is none of tcp", "fd00::1:80": "with the port", "[fd00::1]": "with the port", "[fe80::1%eth0]:80": "with the port",
		"db:": "no port behind it", "db.shop:": "no port behind it", "shop/db/web": "is not svc/", "shop/": "is not svc/", "/db": "is not svc/", "-db": "is not svc/",
		"db..shop": "is not svc/", "10.0.0.300:80": "with the port", "10.0.0": "with the port", "80": "with the port", strings.Repeat("a", 64): "is not svc/",
		"www.example.com": "resolve it, and give the address", "https://www.example.com/": "resolve it, and give the address",
		"http://": "is not svc/", "tcp://10.0.0.1": "has no port", "http://10.0.0.1:0": "has no port", "http://10.0.0": "neither a name nor an IP address",
		"http://[::1": "is not a URL", "http://[fe80::1%25eth0]/": "neither a name nor an IP address", "svc://db:x": "is not a URL",
	} {
		_, err := ParseTo(text)
		check(t, "TO "+text, err, want)
	}
	for text, want := range map[string]string{
		"nod": "did you mean node?", "outsid": "did you mean outside?", "shop/web": "did you mean pod/shop/web?", "pods/shop/web": "did you mean pod/shop/web?",
	} {
		_, err := ParseFrom(text)
		check(t, "FROM "+text, err, want)
	}
	if f, err := ParseFrom("::ffff:10.0.0.1"); err != nil || f.Addr().String() != "10.0.0.1" {
		t.Errorf("a mapped address is %v, %v", f.Addr(), err)
	}
	if f, err := ParseFrom("[::ffff:10.0.0.1]:4000"); err != nil || f.Addr().String() != "10.0.0.1" || f.port != 4000 {
		t.Errorf("a mapped address with a port is %v, port %d, %v", f.Addr(), f.port, err)
	}
}

// describe is how tests write a destination, for a client of a namespace called client.
func describe(to To) string {
	if to.addr.IsValid() {
		return fmt.Sprint(to.addr, " ", to.protocol)
	}
	var names []string
	for _, name := range to.services("client") {
		names = append(names, name.String())
	}
	text := "svc " + strings.Join(names, " or ")
	if to.port != "" {
		text += " port " + to.port
	}
	if to.protocol != 0 {
		text += " " + to.protocol.String()
	}
	return text
}

// TestNearMisses: a name that is not there is answered with what may be meant.
func TestNearMisses(t *testing.T) {
	names := []string{"media/video", "shop/cart", "shop/checkout", "shop/db"}
	for name, want := range map[string]string{
		"media/db": "there is shop/db", "shop/crat": "did you mean shop/cart?", "shop/chekout": "did you mean shop/checkout?",
		"shop/zzzzz": "there is shop/cart, shop/checkout, shop/db", "shp/zzzzz": "did you mean namespace shop?", "zzzzz/zzzzz": "",
	} {
		if got := near(name, names); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestNamesInTheClientsNamespace: the plugin of kubectl, which knows the pod, has the process on the node answer for its address.
func TestNamesInTheClientsNamespace(t *testing.T) {
	for text, want := range map[string]string{
		"db": "svc/shop/db", "db:53/udp": "svc/shop/db:53/udp", "http://db/": "svc/shop/db:80/tcp",
		"db.media": "db.media", "svc/db": "svc/db", "10.0.0.1:80": "10.0.0.1:80", "-o": "-o", "": "",
	} {
		if got := In("shop", text); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
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

// TestQuestionsAreBounded: each answer examines a whole Service, so one question gets few answers, for any number of
// ports and of Services that name an address. The answer says what it leaves out.
func TestQuestionsAreBounded(t *testing.T) {
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	defer s.Close()
	sink := s.Source("test")
	svc := &model.Service{Name: state.ServiceName{Namespace: "shop", Name: "voice"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	for i := range maxAnswers + 8 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: state.UDP, Port: uint16(10_000 + i)})
	}
	objects := []model.Object{&model.Node{Name: "n1"}, svc}
	shared := netip.MustParseAddr("192.0.2.1")
	for i := range maxClaimants + 8 {
		objects = append(objects, &model.Service{
			Name: state.ServiceName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
			ExternalIPs: []netip.Addr{shared}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: uint16(1000 + i)}},
		})
	}
	sink.Update(objects, nil)
	sink.Complete()
	ask := func(text string) []*Answer {
		t.Helper()
		from, _ := ParseFrom("node")
		to, err := ParseTo(text)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := New(Options{Store: s}).Ask(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		return answers
	}
	answers := ask("svc/shop/voice")
	if want := "Service shop/voice has 8 more ports: ask for one of them, as svc/shop/voice:PORT"; len(answers) != maxAnswers || !strings.Contains(fmt.Sprint(answers[maxAnswers-1].Notes), want) {
		t.Errorf("%d answers, the last with the notes %q; want %d with %q", len(answers), answers[len(answers)-1].Notes, maxAnswers, want)
	}
	if answers := ask("svc/shop/voice:p39"); len(answers) != 1 || len(answers[0].Notes) > 0 {
		t.Errorf("to one port, %d answers, the first with the notes %q", len(answers), answers[0].Notes)
	}
	stray := ask("192.0.2.1:9")[0]
	if want := fmt.Sprintf("of %d Services that name the address, these are the first %d", maxClaimants+8, maxClaimants); len(stray.Notes) != maxClaimants || stray.Notes[maxClaimants-1] != want {
		t.Errorf("%d notes, the last %q; want %d and %q", len(stray.Notes), stray.Notes[len(stray.Notes)-1], maxClaimants, want)
	}
}
