package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/test/await"
)

// openFilesVariable is the environment variable by which a test sets the limit of open files of the program.
const openFilesVariable = "SWITCHYARD_TEST_OPEN_FILES"

func limitOpenFiles() {
	n, err := strconv.ParseUint(os.Getenv(openFilesVariable), 10, 64)
	if err == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
	}
	if os.Getenv(openFilesVariable) != "" && err != nil {
		panic(err)
	}
}

// flood makes connections until the test ends, each from the next of some addresses and to the next of some others.
// On each connection it writes the beginning of a request, a whole request, or nothing.
type flood struct{ made atomic.Int64 }

const (
	// keptOpen is how many connections each worker of a flood has open at the same time.
	keptOpen = 150
	// floodPause is the time between two connections of a worker: so many that the server's places are taken over and over.
	floodPause = 4 * time.Millisecond
	// floodPauseVariable is the environment variable that sets another pause: 1ns for floods as fast as the machine can. Nothing then waits
	// for the server.
	floodPauseVariable = "SWITCHYARD_TEST_FLOOD_PAUSE"
)

func startFlood(t *testing.T, workers int, from, to []string) *flood {
	f, every, paced := &flood{}, floodPause, true
	if d, err := time.ParseDuration(os.Getenv(floodPauseVariable)); err == nil {
		every, paced = d, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	const whole = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
	texts := []string{"", "GET /livez HTTP/1.1\r\nHost: x\r\nX: ", whole, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"}
	for worker := range workers {
		wg.Go(func() {
			pause := time.NewTicker(every)
			defer pause.Stop()
			var open []net.Conn
			defer func() {
				for _, c := range open {
					_ = c.Close()
				}
			}()
			for i := worker; ctx.Err() == nil; i++ {
				<-pause.C
				source, target := from[i%len(from)], to[i/len(from)%len(to)]
				if strings.Contains(source, ":") {
					target = strings.Replace(target, nodeAddr, "["+nodeAddr6+"]", 1)
				}
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
				c, err := d.DialContext(ctx, "tcp", target)
				if err != nil {
					continue // it may be refused or take too long
				}
				f.made.Add(1)
				text := texts[i%len(texts)]
				_, _ = io.WriteString(c, text)
				if paced && text == whole {
					// Once a connection is answered or closed, the server has accepted it and all connections before
					// it. Without this wait, more connections would wait on a busy machine than the kernel keeps. The
					// kernel then drops everybody's packets, before any server can tell the clients apart.
					_ = c.SetReadDeadline(time.Now().Add(time.Second))
					_, _ = c.Read(make([]byte, 1))
				}
				if open = append(open, c); len(open) > keptOpen {
					_ = open[0].Close()
					open = open[1:]
				}
			}
		})
	}
	return f
}

// keepSilent keeps n connections to target open on which nothing is said, until the test ends. For each that is closed, another one is made.
func keepSilent(t *testing.T, n int, from []string, target string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from[i%len(from)])}, Timeout: time.Second}
		wg.Go(func() {
			pause := time.NewTicker(100 * time.Millisecond)
			defer pause.Stop()
			for ctx.Err() == nil {
				<-pause.C
				c, err := d.DialContext(ctx, "tcp", target)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = c.Read(make([]byte, 1))
				stop()
				_ = c.Close()
			}
		})
	}
}

// nodeAddr6 is another address of the node.
const nodeAddr6 = "fd00::2"

// floodedFiles is how many files a program that is flooded may have open.
const floodedFiles = 256

// prepareFlood gives the programs that the test starts few files, and returns the addresses to flood them from.
func prepareFlood(t *testing.T) (same, others []string) {
	t.Setenv(openFilesVariable, strconv.Itoa(floodedFiles))
	return addAddresses(t)
}

// addAddresses adds addresses to the loopback interface of the namespace: some of the same /64, and some of other
// networks.
func addAddresses(t *testing.T) (same, others []string) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		same = append(same, fmt.Sprintf("fd00:0:0:1::%x", i+1))
	}
	for i := range 4 { // fewer clients than the smallest server has room for
		others = append(others, fmt.Sprintf("fd00:0:1:%x::1", i+1))
	}
	for _, a := range append(append([]string{nodeAddr6}, same...), others...) {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(128, 128)}, Flags: syscall.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
	}
	return same, others
}

// askTimeout is long: a machine that is busy is no failure. Where a queue of connections is full for a moment, the kernel drops what a client
// sends, and TCP sends it again after 1, 2, 4, 8, 16 and 32 seconds.
const askTimeout = 90 * time.Second

// askFrom asks once, on a connection of its own.
func askFrom(source, target, path string) error {
	d := net.Dialer{Timeout: askTimeout}
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	c, err := d.Dial("tcp", target)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(askTimeout))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		return fmt.Errorf("%s, %w", resp.Status, err)
	}
	return nil
}

// floodEverything floods ports of the program from one client, from one /64 and from some clients, and one over loopback. It waits until all
// their places must be taken.
func floodEverything(t *testing.T, same, others, targets []string, loopback string) (made func() int64) {
	floods := []*flood{
		startFlood(t, 2, []string{endpointAddr}, targets),
		startFlood(t, 2, same, targets),
		startFlood(t, 2, others, targets),
		startFlood(t, 1, []string{"127.0.0.1"}, []string{loopback}),
	}
	const enough = 250 // connections of each: more than three times the places that any server of the program has
	await.Until(t, "the ports are flooded", func() bool {
		n := int64(enough)
		for _, f := range floods {
			n = min(n, f.made.Load())
		}
		return n == enough
	})
	return func() (sum int64) {
		for _, f := range floods {
			sum += f.made.Load()
		}
		return sum
	}
}

// answered asks every port from this machine and from a client that floods nothing, and notes how long it takes.
func answered(t *testing.T, when string, took *[]time.Duration) {
	t.Helper()
	for i := range 10 {
		for _, e := range []struct{ source, target, path string }{
			{"", "127.0.0.1:10256", "/livez"}, {"", nodeAddr + ":10256", "/livez"}, // the kubelet's
			{otherAddr, nodeAddr + ":10256", "/livez"}, {otherAddr, nodeAddr + ":10256", "/healthz"},
			{"", "127.0.0.1:10249", "/metrics"}, {otherAddr, nodeAddr + ":10249", "/healthz"},
			{otherAddr, nodeAddr + ":" + healthPort, "/"},
		} {
			began := time.Now()
			err := askFrom(e.source, e.target, e.path)
			*took = append(*took, time.Since(began))
			if err != nil {
				t.Errorf("%s, round %d: %s from %q: %v", when, i, e.target+e.path, e.source, err)
			}
		}
	}
}

// TestFloodedPorts floods all ports of the program with connections, while it may have few files open: others are answered, a lost
// connection to the API server is made again, and what is new there is routed.
func TestFloodedPorts(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	same, others := prepareFlood(t)
	api := newAPIServer(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	config := fmt.Sprintf(`{apiVersion: kubeproxy.config.k8s.io/v1alpha2, kind: KubeProxyConfiguration, hostnameOverride: node-a, mode: nftables,
  healthzBindAddress: "[::]:10256", metricsBindAddress: "[::]:10249", clientConnection: {contentType: application/json},
  api: {listen: ["tcp://127.0.0.1:12345"]}, nodePortAddresses: ["%s/32", "%s/128"],
  linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}}`, nodeAddr, nodeAddr6)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	endpoint, err := net.Listen("tcp", endpointAddr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer endpoint.Close()
	go func() { _ = http.Serve(endpoint, http.NotFoundHandler()) }()
	p := start(t, "proxy", "--config", file, "--master", api.URL)
	await.Until(t, "the service is routed", func() bool { return connects(clusterAddr) })
	await.Until(t, "the health check port is served", func() bool { return connects(nodeAddr + ":" + healthPort) })

	made := floodEverything(t, same, others, []string{nodeAddr + ":10256", nodeAddr + ":10249", nodeAddr + ":" + healthPort}, "127.0.0.1:12345")
	var took []time.Duration
	answered(t, "while it is flooded", &took)

	watched := api.watched.Load()
	api.CloseClientConnections()
	await.Until(t, "the API server is watched again", func() bool { return api.watched.Load() >= watched+int32(len(objects)) })
	api.added["endpointslices"] <- strings.NewReplacer("web", "new", `"1"`, `"2"`).Replace(objects["endpointslices"])
	api.added["services"] <- strings.NewReplacer("web", "new", `"1"`, `"2"`, "10.96.0.10", "10.96.0.11", nodePort, "30081", healthPort, "32001").Replace(objects["services"])
	await.Until(t, "a new service is routed", func() bool { return connects("10.96.0.11:80") })
	await.Until(t, "the new health check port is served", func() bool { return askFrom(otherAddr, nodeAddr+":32001", "/") == nil })
	answered(t, "after a change", &took)

	p.withstood(t, made(), took)
	if text := get("127.0.0.1:10249/metrics"); !strings.Contains(text, `switchyard_server_connections_closed_total{server="health"}`) {
		t.Errorf("metrics do not say how many connections were closed: %.500s", text)
	}
}

// withstood checks that a flood has left a quarter of the files that the program may have open, and wrote no log of its own.
func (p *process) withstood(t *testing.T, made int64, took []time.Duration) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("%d connections were made; the program has %d of %d files open; %d answers took %v (median) and %v (99 of 100)",
		made, len(open), floodedFiles, len(took), took[len(took)/2], took[len(took)*99/100])
	if len(open) > floodedFiles-floodedFiles/4 {
		t.Errorf("%d of %d files are open, want a quarter left", len(open), floodedFiles)
	}
	if n := strings.Count(p.log.String(), "\n"); n > 200 {
		t.Errorf("the log has %d lines", n)
	}
}

// relayed are the updates of node-a that a relay sends to a client with its certificate, which connects from an address.
type relayed struct {
	updates <-chan *client.Update
	stop    context.CancelFunc
	dials   *atomic.Int32 // connections that it has tried to make
}

// followRelay follows the relay from an address. The certificates are in dir.
func followRelay(t *testing.T, dir, source string) *relayed {
	t.Helper()
	files := client.TLSFiles{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "node-a.crt"), Key: filepath.Join(dir, "node-a.key"), ServerName: "127.0.0.1"}
	certificates, err := client.NewCertificates(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	dialer, dials := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}, new(atomic.Int32)
	w, err := client.NewWatcher(client.Options{Target: nodeAddr + ":8443", Certificates: certificates, DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			return dialer.DialContext(ctx, "tcp", address)
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	updates := make(chan *client.Update, 1)
	go func() {
		defer close(updates)
		for u := range w.Updates(ctx) {
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
	}()
	return &relayed{updates, cancel, dials}
}

// expect waits for an update with exactly the given service.
func (r *relayed) expect(t *testing.T, when, service string) {
	t.Helper()
	if u := await.Receive(t, when+": an update comes", r.updates); len(u.Changed) != 1 || u.Changed[0].GetName() != service {
		t.Fatalf("%s: there is an update of %v, want service %s", when, u.Changed, service)
	}
}

// TestFloodedRelay floods a relay that may have few files open with connections of clients that show no certificate: the nodes that follow it
// get what changes, and others can connect.
func TestFloodedRelay(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	same, others := prepareFlood(t)
	s := newSite(t)
	s.write("web.yaml", rendered("web", "10.96.0.10", "", endpointAddr))
	certs := t.TempDir()
	if err := writeCerts(certs); err != nil {
		t.Fatal(err)
	}
	p := start(t, "serve", "--source", s.dir, "--nodes", "--listen", "tcp://[::]:8443", "--tls-cert", filepath.Join(certs, "server.crt"),
		"--tls-key", filepath.Join(certs, "server.key"), "--client-ca", filepath.Join(certs, "ca.crt"))
	await.Until(t, "the relay serves", p.says("switchyard: serving all nodes on "))
	before := followRelay(t, certs, otherAddr)
	defer before.stop()
	before.expect(t, "before the flood", "web")

	keepSilent(t, floodedFiles/2, others, "["+nodeAddr6+"]:8443") // more than it has places for who shows no certificate
	made := floodEverything(t, same, others, []string{nodeAddr + ":8443"}, "127.0.0.1:8443")
	var took []time.Duration
	refused := int32(0)
	for i := range 20 {
		began := time.Now()
		r := followRelay(t, certs, otherAddr)
		r.expect(t, fmt.Sprintf("round %d", i), "web")
		took, refused = append(took, time.Since(began)), refused+r.dials.Load()-1
		r.stop()
	}
	if refused > 2 { // none, but for a machine so busy that a handshake takes longer than a client waits
		t.Errorf("nodes connected %d times in vain", refused)
	}
	s.write("new.yaml", rendered("new", "10.96.0.11", "", endpointAddr))
	before.expect(t, "after a change", "new")
	p.withstood(t, made(), took)
}
