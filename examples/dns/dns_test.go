package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/switchyard-net/switchyard/client"
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
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: another}}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}, {name: metrics, port: 9100}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-4, namespace: shop, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ""}}
addressType: IPv4
ports: [{name: sql, port: 5432}, {name: metrics, port: 9100}]
endpoints:
- {addresses: [10.244.0.5], hostname: db-0}
- {addresses: [10.244.0.6]}
- {addresses: [10.244.0.7], hostname: db-2, conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ""}}
addressType: IPv6
ports: [{name: sql, port: 5433}]
endpoints: [{addresses: ["fd00:10:244::5"], hostname: db-0}]
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: www.example.com}
---
apiVersion: v1
kind: Namespace
metadata: {name: free, labels: {networking.k8s.io/kube-proxy: disabled}}
---
apiVersion: v1
kind: Service
metadata: {name: own, namespace: free}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]}
`

// started starts the program on a free port of the loopback address, with the manifest, and waits until it knows the state.
func started(t *testing.T) (address, manifests string) {
	t.Helper()
	manifests = filepath.Join(t.TempDir(), "shop.yaml")
	address = start(t, apitest.Serve(t, apitest.Write(t, manifests, manifest), nil))
	for text(ask(t, "tcp", address, question("cluster.local.", dnsmessage.TypeA))) == "ServerFailure" {
		if t.Context().Err() != nil {
			t.Fatal("there are no names")
		}
	}
	return address, manifests
}

func start(t *testing.T, target string) (address string) {
	t.Helper()
	// A loopback address of this process: at 127.0.0.1, tests that run at the same time may hold the UDP port or take
	// the TCP port.
	host := "127.0.0.1"
	if pid := os.Getpid(); runtime.GOOS == "linux" && pid < 1<<22 {
		host = netip.AddrFrom4([4]byte{127, byte(100 + pid>>16), byte(pid >> 8), byte(pid)}).String()
	}
	free, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- run(ctx, client.Options{Target: target, Logger: slog.New(slog.DiscardHandler)}, address, "cluster.local")
	}()
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
		// A UDP socket also connects to an address that nothing listens on yet.
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
			case *dnsmessage.CNAMEResource:
				parts = append(parts, name+" CNAME "+b.CNAME.String())
			case *dnsmessage.PTRResource:
				parts = append(parts, name+" PTR "+b.PTR.String())
			case *dnsmessage.TXTResource:
				parts = append(parts, name+" TXT "+strings.Join(b.TXT, ","))
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
		// A name that is only a suffix of other names exists.
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
		{"10-244-1-5.shop.pod.cluster.local.", a, noName},
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

// TestSpecification has each row of Kubernetes' DNS specification, 1.1.0.
func TestSpecification(t *testing.T) {
	address, _ := started(t)
	a, aaaa, srv, ptr := dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV, dnsmessage.TypePTR
	const db = "db.shop.svc.cluster.local."
	const web6 = "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa."
	const noName = "NameError; authority cluster.local. SOA 5"
	for _, c := range []struct {
		section, name string
		qtype         dnsmessage.Type
		want          string
	}{
		{"2.2", "dns-version.cluster.local.", dnsmessage.TypeTXT, "Success; dns-version.cluster.local. TXT 1.1.0"},
		{"2.3.1", "web.shop.svc.cluster.local.", a, "Success; web.shop.svc.cluster.local. A 10.96.0.10"},
		{"2.3.1, opted out", "own.free.svc.cluster.local.", a, "Success; own.free.svc.cluster.local. A 10.96.0.20"},
		{"2.3.1", "web.shop.svc.cluster.local.", aaaa, "Success; web.shop.svc.cluster.local. AAAA fd00:10:96::10"},
		{"2.3.2", "_http._tcp.own.free.svc.cluster.local.", srv, "Success; _http._tcp.own.free.svc.cluster.local. SRV 0 100 80 " +
			"own.free.svc.cluster.local.; additional own.free.svc.cluster.local. A 10.96.0.20"},
		{"2.3.3", "10.0.96.10.in-addr.arpa.", ptr, "Success; 10.0.96.10.in-addr.arpa. PTR web.shop.svc.cluster.local."},
		{"2.3.3", web6, ptr, "Success; " + web6 + " PTR web.shop.svc.cluster.local."},
		{"2.3.3, no such address", "99.0.96.10.in-addr.arpa.", ptr, "Refused"},
		{"2.4.1", db, a, "Success; " + db + " A 10.244.0.5; " + db + " A 10.244.0.6"},
		{"2.4.1", db, aaaa, "Success; " + db + " AAAA fd00:10:244::5"},
		{"2.4.1, nothing is ready", "headless.shop.svc.cluster.local.", a, noName},
		{"2.4.1, hostname", "db-0." + db, a, "Success; db-0." + db + " A 10.244.0.5"},
		{"2.4.1, hostname", "db-0." + db, aaaa, "Success; db-0." + db + " AAAA fd00:10:244::5"},
		{"2.4.1, assigned", "10-244-0-6." + db, a, "Success; 10-244-0-6." + db + " A 10.244.0.6"},
		{"2.4.1, has a hostname", "10-244-0-5." + db, a, noName},
		{"2.4.1, not ready", "db-2." + db, a, noName},
		{"2.4.2", "_sql._tcp." + db, srv, "Success; " +
			"_sql._tcp." + db + " SRV 0 33 5432 10-244-0-6." + db + "; " +
			"_sql._tcp." + db + " SRV 0 33 5432 db-0." + db + "; " +
			"_sql._tcp." + db + " SRV 0 33 5433 db-0." + db + "; " +
			"additional 10-244-0-6." + db + " A 10.244.0.6; additional db-0." + db + " A 10.244.0.5; additional db-0." + db + " AAAA fd00:10:244::5"},
		{"2.4.2, unnamed", "_._tcp." + db, srv, noName},
		{"2.4.3", "5.0.244.10.in-addr.arpa.", ptr, "Success; 5.0.244.10.in-addr.arpa. PTR db-0." + db},
		{"2.4.3, assigned", "6.0.244.10.in-addr.arpa.", ptr, "Success; 6.0.244.10.in-addr.arpa. PTR 10-244-0-6." + db},
		{"2.4.3, not ready", "7.0.244.10.in-addr.arpa.", ptr, "Refused"},
		{"2.5", "out.shop.svc.cluster.local.", a, "Success; out.shop.svc.cluster.local. CNAME www.example.com."},
		{"2.5", "out.shop.svc.cluster.local.", dnsmessage.TypeCNAME, "Success; out.shop.svc.cluster.local. CNAME www.example.com."},
	} {
		got := text(ask(t, "udp", address, withEDNS(t, question(c.name, c.qtype), 4096)))
		if got = strings.Replace(got, "; additional . OPT 1232", "", 1); got != c.want {
			t.Errorf("%s: %s %v:\n got %s\nwant %s", c.section, c.name, c.qtype, got, c.want)
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

// TestAnswersBeforeFirstState asks before there is a state: that is no reason to say that a name does not exist.
func TestAnswersBeforeFirstState(t *testing.T) {
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
	err = client.RunNames(ctx, client.Options{Target: target}, func(u *client.NamesUpdate) {
		defer cancel()
		z.apply(u, func(err error) { t.Error(err) })
	})
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
