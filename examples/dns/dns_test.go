package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/test/apitest"
)

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ports: [{name: http, port: 80}, {name: dns, protocol: UDP, port: 53}, {name: dns-tcp, port: 53}]
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: shop}
spec: {ipFamilies: [IPv6], clusterIP: "fd00:10:96::11", ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
`

// started starts the program on a free port of the loopback address, with the manifest, and waits until it knows the state.
func started(t *testing.T) (address, manifests string) {
	t.Helper()
	manifests = filepath.Join(t.TempDir(), "shop.yaml")
	shown := make(chan struct{}, 100)
	target := apitest.Serve(t, apitest.Write(t, manifests, manifest), func(_ server.Client, s server.Status) {
		if s.Applied > 0 {
			shown <- struct{}{}
		}
	})
	address = start(t, target)
	<-shown
	return address, manifests
}

func start(t *testing.T, target string) (address string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- run(ctx, client.Options{Target: target}, address, "cluster.local") }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return address
}

// ask sends a query and returns the answer.
func ask(t *testing.T, network, address string, m dnsmessage.Message) dnsmessage.Message {
	t.Helper()
	return parsed(t, exchange(t, network, address, packed(t, m)))
}

func packed(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	query, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return query
}

func exchange(t *testing.T, network, address string, query []byte) []byte {
	t.Helper()
	var conn net.Conn
	var err error
	deadline := time.Now().Add(time.Minute)
	for conn == nil {
		// A UDP socket connects to what is not there yet, too.
		if conn, err = net.Dial("tcp", address); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if network == "udp" {
		conn.Close()
		if conn, err = net.Dial("udp", address); err != nil {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := conn.Write(query); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 65535)
	n := 0
	if network == "udp" {
		n, err = conn.Read(answer)
	} else if _, err = io.ReadFull(conn, answer[:2]); err == nil {
		n, err = io.ReadFull(conn, answer[:binary.BigEndian.Uint16(answer)])
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer[:n]
}

func parsed(t *testing.T, answer []byte) (m dnsmessage.Message) {
	t.Helper()
	if err := m.Unpack(answer); err != nil {
		t.Fatal(err)
	}
	return m
}

func question(name string, qtype dnsmessage.Type) dnsmessage.Message {
	return dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: qtype, Class: dnsmessage.ClassINET}},
	}
}

// text is what is in an answer, in short.
func text(m dnsmessage.Message) string {
	var parts []string
	for _, section := range []struct {
		name      string
		resources []dnsmessage.Resource
	}{{"", m.Answers}, {"authority ", m.Authorities}, {"additional ", m.Additionals}} {
		for _, r := range section.resources {
			name := section.name + r.Header.Name.String()
			switch b := r.Body.(type) {
			case *dnsmessage.AResource:
				parts = append(parts, name+" A "+net.IP(b.A[:]).String())
			case *dnsmessage.AAAAResource:
				parts = append(parts, name+" AAAA "+net.IP(b.AAAA[:]).String())
			case *dnsmessage.SRVResource:
				parts = append(parts, fmt.Sprintf("%s SRV %d %d %d %s", name, b.Priority, b.Weight, b.Port, b.Target))
			case *dnsmessage.SOAResource:
				parts = append(parts, fmt.Sprintf("%s SOA %d", name, b.MinTTL))
			case *dnsmessage.OPTResource:
				parts = append(parts, fmt.Sprintf("%s OPT %d", name, r.Header.Class))
			}
		}
	}
	slices.Sort(parts)
	code := strings.TrimPrefix(m.RCode.String(), "RCode")
	return strings.Join(append([]string{code}, parts...), "; ")
}

func TestAnswers(t *testing.T) {
	address, _ := started(t)
	const (
		noData  = "Success; authority cluster.local. SOA 5"
		noName  = "NameError; authority cluster.local. SOA 5"
		webIPs  = "; additional web.shop.svc.cluster.local. A 10.96.0.10; additional web.shop.svc.cluster.local. AAAA fd00:10:96::10"
		refused = "Refused"
	)
	a, aaaa, srv, txt, all := dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV, dnsmessage.TypeTXT, dnsmessage.TypeALL
	for _, c := range []struct {
		name  string
		qtype dnsmessage.Type
		want  string
	}{
		{"web.shop.svc.cluster.local.", a, "Success; web.shop.svc.cluster.local. A 10.96.0.10"},
		{"web.shop.svc.cluster.local.", aaaa, "Success; web.shop.svc.cluster.local. AAAA fd00:10:96::10"},
		{"web.shop.svc.cluster.local.", all, "Success; web.shop.svc.cluster.local. A 10.96.0.10; web.shop.svc.cluster.local. AAAA fd00:10:96::10"},
		{"wEb.sHop.SVC.clUster.Local.", a, "Success; wEb.sHop.SVC.clUster.Local. A 10.96.0.10"},
		{"web.shop.svc.cluster.local.", txt, noData},
		{"six.shop.svc.cluster.local.", a, noData},
		{"six.shop.svc.cluster.local.", aaaa, "Success; six.shop.svc.cluster.local. AAAA fd00:10:96::11"},
		{"_http._tcp.web.shop.svc.cluster.local.", srv,
			"Success; _http._tcp.web.shop.svc.cluster.local. SRV 0 100 80 web.shop.svc.cluster.local." + webIPs},
		{"_dns._udp.web.shop.svc.cluster.local.", srv,
			"Success; _dns._udp.web.shop.svc.cluster.local. SRV 0 100 53 web.shop.svc.cluster.local." + webIPs},
		{"_dns._tcp.web.shop.svc.cluster.local.", srv, noName}, // it is called dns-tcp
		{"_http._tcp.web.shop.svc.cluster.local.", a, noData},
		{"_._tcp.six.shop.svc.cluster.local.", srv, noName},
		// What is only a part of names exists.
		{"_tcp.web.shop.svc.cluster.local.", srv, noData},
		{"_sctp.web.shop.svc.cluster.local.", srv, noName},
		{"shop.svc.cluster.local.", a, noData},
		{"svc.cluster.local.", a, noData},
		{"cluster.local.", a, noData},
		{"cluster.local.", dnsmessage.TypeSOA, "Success; cluster.local. SOA 5"},
		{"empty.svc.cluster.local.", a, noName},
		{"none.shop.svc.cluster.local.", a, noName},
		{"headless.shop.svc.cluster.local.", a, noName},
		{"x.web.shop.svc.cluster.local.", a, noName},
		{"x._http._tcp.web.shop.svc.cluster.local.", srv, noName},
		{"pod.cluster.local.", a, noName},
		{"notcluster.local.", a, refused},
		{"example.org.", a, refused},
		{".", a, refused},
	} {
		for _, network := range []string{"udp", "tcp"} {
			m := ask(t, network, address, question(c.name, c.qtype))
			if got := text(m); got != c.want {
				t.Errorf("%s %v over %s:\n got %s\nwant %s", c.name, c.qtype, network, got, c.want)
			}
			if m.ID != 4711 || !m.Response || !m.RecursionDesired || m.RecursionAvailable || m.Authoritative != (c.want != refused) {
				t.Errorf("%s %v over %s: header %+v", c.name, c.qtype, network, m.Header)
			}
		}
	}
}

func TestFollowsChanges(t *testing.T) {
	address, manifests := started(t)
	apitest.Write(t, manifests, strings.ReplaceAll(strings.ReplaceAll(manifest, "10.96.0.10", "10.96.0.99"), "name: six", "name: seven"))
	want := map[string]string{"web": "Success; web.shop.svc.cluster.local. A 10.96.0.99", "six": "NameError; authority cluster.local. SOA 5"}
	deadline := time.Now().Add(time.Minute)
	for name, want := range want {
		got := ""
		for got != want {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s, want %s", name, got, want)
			}
			got = text(ask(t, "tcp", address, question(name+".shop.svc.cluster.local.", dnsmessage.TypeA)))
		}
	}
}

// TestKnowsNothing asks before there is a state: that is no reason to say that a name does not exist.
func TestKnowsNothing(t *testing.T) {
	address := start(t, "unix://"+filepath.Join(os.TempDir(), "there-is-no-such.sock"))
	if got := text(ask(t, "udp", address, question("web.shop.svc.cluster.local.", dnsmessage.TypeA))); got != "ServerFailure" {
		t.Errorf("got %s", got)
	}
}

func TestOddQueries(t *testing.T) {
	address, _ := started(t)
	two := question("web.shop.svc.cluster.local.", dnsmessage.TypeA)
	two.Questions = append(two.Questions, two.Questions[0])
	notify := question("web.shop.svc.cluster.local.", dnsmessage.TypeA)
	notify.OpCode = 4
	chaos := question("web.shop.svc.cluster.local.", dnsmessage.TypeA)
	chaos.Questions[0].Class = dnsmessage.ClassCHAOS
	edns := withEDNS(t, question("web.shop.svc.cluster.local.", dnsmessage.TypeA), 4096)
	for _, c := range []struct {
		what  string
		query dnsmessage.Message
		want  string
	}{
		{"two questions", two, "FormatError"},
		{"another operation", notify, "NotImplemented"},
		{"another class", chaos, "Refused"},
		{"EDNS", edns, "Success; additional . OPT 1232; web.shop.svc.cluster.local. A 10.96.0.10"},
	} {
		if got := text(ask(t, "udp", address, c.query)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
	// The end of a query is cut off.
	query := packed(t, question("web.shop.svc.cluster.local.", dnsmessage.TypeA))
	if got := text(parsed(t, exchange(t, "udp", address, query[:len(query)-3]))); got != "FormatError" {
		t.Errorf("half a query: got %s", got)
	}
	var z zone
	answer := question("web.shop.svc.cluster.local.", dnsmessage.TypeA)
	answer.Response = true
	query = packed(t, answer)
	if z.answer(query, plainSize) != nil || z.answer([]byte("short"), plainSize) != nil {
		t.Error("it answers what is no query")
	}
}

func withEDNS(t *testing.T, m dnsmessage.Message, size int) dnsmessage.Message {
	t.Helper()
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err != nil {
		t.Fatal(err)
	}
	m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{}})
	return m
}

// TestLargeAnswer has names so long that an answer fits into a TCP message only, or into one of EDNS.
func TestLargeAnswer(t *testing.T) {
	long, name := strings.Repeat("d", 55), strings.Repeat("s", 60)
	z, err := newZone(long + "." + long + "." + long)
	if err != nil {
		t.Fatal(err)
	}
	target := apitest.Serve(t, apitest.Write(t, filepath.Join(t.TempDir(), "shop.yaml"), strings.Replace(manifest, "name: web", "name: "+name, 1)), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = client.RunSink(ctx, client.Options{Target: target}, client.SinkFunc(func(ctx context.Context, c *client.Change) (map[client.ServiceName]error, error) {
		defer cancel()
		return z.Apply(ctx, c)
	}))
	if err != nil {
		t.Fatal(err)
	}
	q := question("_http._tcp."+name+".shop.svc."+z.domain, dnsmessage.TypeSRV)
	query := packed(t, q)
	whole := parsed(t, z.answer(query, tcpSize))
	if len(whole.Answers) != 1 || len(whole.Additionals) != 2 || whole.Truncated {
		t.Errorf("over TCP: %s", text(whole))
	}
	cut := z.answer(query, plainSize)
	if m := parsed(t, cut); len(cut) > plainSize || !m.Truncated || len(m.Answers) > 0 {
		t.Errorf("over UDP: %d bytes, truncated %v: %s", len(cut), m.Truncated, text(m))
	}
	query = packed(t, withEDNS(t, q, 4096))
	if m := parsed(t, z.answer(query, plainSize)); m.Truncated || len(m.Answers) != 1 {
		t.Errorf("with EDNS: truncated %v: %s", m.Truncated, text(m))
	}
}

func FuzzAnswer(f *testing.F) {
	z, err := newZone("cluster.local")
	if err != nil {
		f.Fatal(err)
	}
	z.known = true
	for _, name := range []string{"cluster.local.", "a.b.svc.cluster.local.", "_a._b.c.d.svc.cluster.local."} {
		f.Add(packed(f, question(name, dnsmessage.TypeALL)))
	}
	f.Fuzz(func(t *testing.T, query []byte) {
		answer := z.answer(query, plainSize)
		if len(answer) > maxSize {
			t.Errorf("%d bytes", len(answer))
		}
		if answer != nil {
			parsed(t, answer)
		}
	})
}
