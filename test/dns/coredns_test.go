package dns

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/miekg/dns"

	"github.com/switchyard-net/switchyard/test/apitest"
)

// TestSameAsCoreDNS asks CoreDNS and examples/dns for every name of the specification, and more.
func TestSameAsCoreDNS(t *testing.T) {
	manifests, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	coreDNS := startCoreDNS(t, apiServer(t, filepath.Join(manifests, "objects.yaml")))
	example := startExample(t, apitest.Serve(t, manifests, nil))
	for _, c := range questions() {
		want, got := ask(t, coreDNS, c), ask(t, example, c)
		if got != want {
			t.Errorf("%s %s:\n    CoreDNS: %s\nexamples/dns: %s", c.name, dns.TypeToString[c.qtype], want, got)
		}
	}
}

type question struct {
	name  string
	qtype uint16
}

// questions are all questions of the specification about the names in objects.yaml, and about names that do not
// exist. There is no question where CoreDNS has more than the specification, or less than DNS asks for: SRV records
// of a service's own name, addresses of the names of ports, PTR records of endpoints of services with cluster IPs,
// NXDOMAIN for names that have records of another type only, no CNAME record in answers about other types, and
// NXDOMAIN for addresses outside the cluster.
func questions() (list []question) {
	ask := func(name string, qtypes ...uint16) {
		for _, qtype := range qtypes {
			list = append(list, question{name, qtype})
		}
	}
	for _, service := range []string{
		"web.shop", "six.shop", "unnamed.shop", "db.shop", "empty.shop", "pending.shop", "out.shop", "other.shop", "own.free", "pods.free",
		"none.shop", "web.nowhere",
	} {
		base := service + ".svc.cluster.local."
		ask(base, dns.TypeA, dns.TypeAAAA, dns.TypeCNAME)
		for _, port := range []string{"_http._tcp.", "_dns._udp.", "_dns._tcp.", "_sql._tcp.", "_metrics._tcp.", "_none._tcp."} {
			ask(port+base, dns.TypeSRV)
		}
		if !slices.Contains([]string{"db.shop", "pods.free", "empty.shop", "pending.shop"}, service) {
			continue
		}
		for _, host := range []string{
			"db-0.", "DB-0.", "db-1.", "db-2.", "10-244-0-5.", "10-244-0-6.", "10-244-0-7.", "10-244-1-5.", "fd00-10-244--5.", "fd00-10-244--6.",
		} {
			ask(host+base, dns.TypeA, dns.TypeAAAA)
		}
	}
	for _, name := range []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "Web.SHOP.svc.cluster.local."} {
		ask(name, dns.TypeA, dns.TypeAAAA)
	}
	ask("dns-version.cluster.local.", dns.TypeTXT)
	for _, ip := range []string{
		"10.96.0.10", "fd00:10:96::10", "fd00:10:96::11", "10.96.0.20", "10.96.0.40", "10.244.0.5", "10.244.0.6", "10.244.1.5",
		"fd00:10:244::5", "fd00:10:244::6",
	} {
		name, err := dns.ReverseAddr(ip)
		if err != nil {
			panic(err)
		}
		ask(name, dns.TypePTR)
	}
	return list
}

// ask returns an answer in short: its code, and the records without what the specification leaves open: order, time to live, priority and
// weight, and what is in other sections.
func ask(t *testing.T, address string, q question) string {
	t.Helper()
	m := new(dns.Msg).SetQuestion(q.name, q.qtype)
	m.SetEdns0(1232, false)
	c := dns.Client{Timeout: 5 * time.Second}
	r, _, err := c.Exchange(m, address)
	if err == nil && r.Truncated {
		c.Net = "tcp"
		r, _, err = c.Exchange(m, address)
	}
	if err != nil {
		t.Fatalf("%s: %s %s: %v", address, q.name, dns.TypeToString[q.qtype], err)
	}
	var records []string
	for _, rr := range r.Answer {
		switch rr := rr.(type) {
		case *dns.SRV:
			records = append(records, fmt.Sprintf("SRV %d %s", rr.Port, rr.Target))
		default:
			records = append(records, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	slices.Sort(records)
	return strings.Join(append([]string{dns.RcodeToString[r.Rcode]}, records...), "; ")
}

// startCoreDNS starts CoreDNS with the configuration that Kubernetes' installers give it, but for a resolver outside of the cluster.
func startCoreDNS(t *testing.T, api string) (address string) {
	t.Helper()
	address = freeAddress(t)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	corefile := fmt.Sprintf(`.:%s {
	bind %s
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		endpoint %s
		pods disabled
	}
}`, port, host, api)
	caddy.Quiet = true
	server, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return address
}

// startExample builds examples/dns and starts it.
func startExample(t *testing.T, target string) (address string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "dns")
	build := exec.Command("go", "build", "-o", bin, "./examples/dns")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	address = freeAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, "-api", target, "-listen", address)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	// It answers SERVFAIL until it has names, and not at all before it listens.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := dns.Exchange(new(dns.Msg).SetQuestion("cluster.local.", dns.TypeSOA), address)
		if err == nil && r.Rcode == dns.RcodeSuccess {
			return address
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %v", address, err)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
