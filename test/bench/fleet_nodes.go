package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/test/certtest"
)

const (
	// fleetName is the name of relays, in their certificates.
	fleetName = "relay"
	// fleetScheme is the scheme of the target that nodes follow: a name with the addresses of the order Follow.
	fleetScheme = "fleet"
	// awaitTimeout is how long nodes may take to get what is awaited.
	awaitTimeout = 3 * time.Minute
)

// FleetNodes is the process of a fleet: many nodes that follow relays with the client library, each over a connection
// with its own certificate. After a lost connection they reconnect as the library does. It takes orders from stdin
// until that ends, and answers on stdout.
func FleetNodes(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &fleetNodes{ctx: ctx, out: json.NewEncoder(stdout), addresses: manual.NewBuilderWithScheme(fleetScheme)}
	defer f.running.Wait()
	defer cancel()
	resolver.Register(f.addresses)
	orders := json.NewDecoder(stdin)
	for {
		var o fleetOrder
		switch err := orders.Decode(&o); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read an order: %w", err)
		}
		if err := f.obey(o); err != nil {
			return err
		}
	}
}

// fleetNodes are the nodes of this process.
type fleetNodes struct {
	ctx       context.Context
	answering sync.Mutex
	out       *json.Encoder
	addresses *manual.Resolver
	following bool
	nodes     []*node
	tls       *tls.Config // without a certificate
	authority *certtest.Authority
	running   sync.WaitGroup

	bytes, failures atomic.Int64
	lastFailure     atomic.Value
	awaited         atomic.Pointer[awaited] // nil if nothing is

	mu      sync.Mutex // guards all below
	missing int        // nodes that do not have what is awaited
	all     chan struct{}
	tables  [][]uint32 // to use again
}

func (f *fleetNodes) obey(o fleetOrder) error {
	var a fleetAnswer
	var err error
	switch {
	case o.Start != nil:
		err = f.start(o.Start)
	case o.Follow != nil:
		err = f.follow(o.Follow)
	case o.Await != nil:
		all := f.begin(o.Await)
		f.running.Go(func() { _ = f.answer(f.arrived(all)) }) // which fails if nobody waits for the answer
	case o.Slow != nil:
		for i, n := range f.nodes {
			n.setSlow(i < *o.Slow)
		}
	case o.Digests:
		for _, n := range f.nodes {
			a.Digests = append(a.Digests, n.digest())
		}
	case o.Stats:
		a.Stats = f.stats()
	}
	return f.answer(a, err)
}

func (f *fleetNodes) answer(a fleetAnswer, err error) error {
	if err != nil {
		a.Error = err.Error()
	}
	f.answering.Lock()
	defer f.answering.Unlock()
	return f.out.Encode(a)
}

func (f *fleetNodes) start(s *fleetStart) error {
	f.authority = certtest.NewAuthority()
	f.tls = &tls.Config{RootCAs: f.authority.Pool(), ServerName: fleetName, MinVersion: tls.VersionTLS13}
	cert, key := f.authority.Issue(24*time.Hour, pkix.Name{CommonName: fleetName, Organization: []string{"switchyard:relays"}}, fleetName)
	for name, content := range map[string][]byte{"ca.crt": f.authority.PEM, "relay.crt": cert, "relay.key": key} {
		if err := os.WriteFile(filepath.Join(s.Directory, name), content, 0o600); err != nil {
			return err
		}
	}
	for i := range s.Nodes {
		n := &node{fleet: f, index: i, state: make([]uint32, s.Services)}
		cert, key := f.authority.Issue(24*time.Hour, pkix.Name{CommonName: "system:node:" + nodeNameOf(i), Organization: []string{"system:nodes"}})
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return err
		}
		n.tls = f.tls.Clone()
		n.tls.Certificates = []tls.Certificate{pair}
		f.nodes = append(f.nodes, n)
	}
	return nil
}

// follow gives the nodes new addresses. All of them connect at once, as after a power cut.
func (f *fleetNodes) follow(addresses []string) error {
	var state resolver.State
	for _, a := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a})
	}
	if f.following {
		f.addresses.InitialState(state) // for the next connections; those that there are find out by themselves
		return nil
	}
	f.following = true
	f.addresses.InitialState(state)
	for _, n := range f.nodes {
		watcher, err := client.NewWatcher(client.Options{
			Target: fleetScheme + ":///" + fleetName, TLS: n.tls, Node: nodeNameOf(n.index), Logger: slog.New(slog.DiscardHandler),
			OnError: f.failed,
			DialOptions: []grpc.DialOption{
				grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(4 << 10), grpc.WithContextDialer(n.dial),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newNodeCodec(n))),
			},
		})
		if err != nil {
			return err
		}
		f.running.Go(func() {
			for range watcher.Updates(f.ctx) {
				n.arrive(time.Now())
			}
		})
	}
	return nil
}

func (f *fleetNodes) failed(err error) {
	f.failures.Add(1)
	f.lastFailure.Store(err.Error())
}

// begin begins to wait for a state, and returns what is closed once all nodes have it.
func (f *fleetNodes) begin(what *awaited) <-chan struct{} {
	for _, n := range f.nodes {
		n.expect()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missing, f.all = 0, make(chan struct{})
	f.awaited.Store(what)
	for _, n := range f.nodes {
		n.at = time.Time{}
		if !n.slow.Load() {
			f.missing++
		}
	}
	return f.all
}

// arrived waits until all nodes have what is awaited, and returns when they got it.
func (f *fleetNodes) arrived(all <-chan struct{}) (a fleetAnswer, err error) {
	a.Awaited = true
	select {
	case <-all:
	case <-f.ctx.Done():
		return a, f.ctx.Err()
	case <-time.After(awaitTimeout):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited.Store(nil)
	if f.missing > 0 {
		last, _ := f.lastFailure.Load().(string)
		return a, fmt.Errorf("after %v %d of %d nodes do not have the state that there is; the last error is %q", awaitTimeout, f.missing, len(f.nodes), last)
	}
	for _, n := range f.nodes {
		if !n.at.IsZero() && !n.slow.Load() {
			a.Arrived = append(a.Arrived, n.at.UnixNano())
		}
	}
	return a, nil
}

func (f *fleetNodes) stats() fleetStats {
	s := fleetStats{Bytes: f.bytes.Load(), Failures: f.failures.Load(), CPU: processCPU(), Connected: make(map[string]int)}
	s.LastFailure, _ = f.lastFailure.Load().(string)
	for _, n := range f.nodes {
		if c := n.conn.Load(); c != nil {
			s.Connected[c.RemoteAddr().String()]++
		}
	}
	return s
}

// table returns an empty state: table itself if there is one, or one that is not in use.
func (f *fleetNodes) table(table []uint32, services int) []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if table != nil {
		clear(table)
		return table
	}
	if last := len(f.tables) - 1; last >= 0 {
		t := f.tables[last]
		f.tables = f.tables[:last]
		clear(t)
		return t
	}
	return make([]uint32, services)
}

func (f *fleetNodes) putTable(t []uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tables = append(f.tables, t)
}
