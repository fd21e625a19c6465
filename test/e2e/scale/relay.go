//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/test/certtest"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

// relayAddress is where the relay serves, in the namespace of the control plane.
const relayAddress = controlplane.Address + ":8443"

// relay is a relay for all nodes, on the host of the control plane.
type relay struct {
	dir       string
	authority *certtest.Authority
	process   *controlplane.Process
}

// startRelay starts a relay that admits so many nodes. The caller must call close.
func startRelay(c *cluster, dir, program string, nodes int) (*relay, error) {
	r := &relay{authority: certtest.NewAuthority()}
	var err error
	if r.dir, err = os.MkdirTemp(dir, "relay"); err != nil {
		return nil, err
	}
	cert, key := r.authority.Issue(24*time.Hour, pkix.Name{CommonName: "relay", Organization: []string{"switchyard:relays"}}, controlplane.Address)
	for name, text := range map[string][]byte{"ca.crt": r.authority.PEM, "relay.crt": cert, "relay.key": key} {
		if err := os.WriteFile(r.file(name), text, 0o600); err != nil {
			return nil, err
		}
	}
	// The simulated nodes have one address, which may have a quarter of the clients.
	most := fmt.Sprint(4*nodes + 100)
	r.process, err = controlplane.Run(c.plane, r.dir, "serve", program, "serve", "--nodes", "--kubeconfig="+c.kubeconfig, "--cluster-cidr="+clusterCIDR.String(),
		"--listen=tcp://"+relayAddress, "--tls-cert="+r.file("relay.crt"), "--tls-key="+r.file("relay.key"), "--client-ca="+r.file("ca.crt"),
		"--max-clients="+most)
	return r, err
}

func (r *relay) file(name string) string { return filepath.Join(r.dir, name) }

// issue returns the certificate of a node, as its kubelet has one, and its key.
func (r *relay) issue(node int) (cert, key []byte) {
	return r.authority.Issue(24*time.Hour, pkix.Name{CommonName: "system:node:" + nodeName(node), Organization: []string{"system:nodes"}})
}

// writeClient writes the certificate and the key of a node to a directory, and returns their paths.
func (r *relay) writeClient(dir string, node int) (certFile, keyFile string, err error) {
	cert, key := r.issue(node)
	certFile, keyFile = filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key")
	return certFile, keyFile, errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600))
}

// close ends the relay. It may be called for nil.
func (r *relay) close() {
	if r != nil && r.process != nil {
		r.process.Kill()
	}
}

// simulated is nodes that follow the relay with the client library, each over a connection and with a certificate of its own. They decode
// each update, and program nothing.
type simulated struct {
	stop     context.CancelFunc
	running  sync.WaitGroup
	served   atomic.Int64 // nodes that have the whole state
	failures atomic.Int64
	failure  atomic.Value // text of the last one

	mu   sync.Mutex
	took []time.Duration // from the trigger of each change until a node had it
}

// connecting is how many simulated nodes take a whole state at a time, because one process decodes all of them.
const connecting = 64

// simulate makes the nodes with the numbers from first to end follow the relay, and returns when all of them have the whole state.
// The caller must call close, also after an error.
func simulate(ctx context.Context, plane namespace, r *relay, first, end int) (*simulated, error) {
	s := &simulated{}
	ctx, s.stop = context.WithCancel(ctx)
	slots := make(chan struct{}, connecting)
	began := time.Now()
	for i := first; i < end; i++ {
		select {
		case slots <- struct{}{}:
		case <-time.After(startTimeout):
			return s, fmt.Errorf("%d of %d simulated nodes have a state after %v; the last error is %v", s.served.Load(), end-first,
				time.Since(began).Round(time.Second), s.failure.Load())
		case <-ctx.Done():
			return s, ctx.Err()
		}
		w, err := s.watcher(plane, r, i)
		if err != nil {
			return s, err
		}
		s.running.Go(func() { s.follow(ctx, w, func() { <-slots }) })
		if n := i - first + 1; n%1000 == 0 {
			logf("%d of %d simulated nodes after %v", n, end-first, time.Since(began).Round(time.Second))
		}
	}
	for range connecting {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
	return s, nil
}

func (s *simulated) watcher(plane namespace, r *relay, node int) (*client.Watcher, error) {
	pair, err := tls.X509KeyPair(r.issue(node))
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, addr string) (conn net.Conn, err error) {
		err = plane.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			return err
		})
		return conn, err
	}
	const buffer = 4 << 10 // of each connection, instead of 32 KiB
	return client.NewWatcher(client.Options{
		Target: "passthrough:///" + relayAddress, Node: nodeName(node),
		TLS: &tls.Config{RootCAs: r.authority.Pool(), ServerName: controlplane.Address, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}},
		OnError: func(err error) {
			s.failures.Add(1)
			s.failure.Store(err.Error())
		},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithReadBufferSize(buffer), grpc.WithWriteBufferSize(buffer)},
	})
}

// follow takes the updates of a node until ctx ends. It calls served with the first one.
func (s *simulated) follow(ctx context.Context, w *client.Watcher, served func()) {
	first := true
	for u := range w.Updates(ctx) {
		now := time.Now()
		if first {
			first = false
			s.served.Add(1)
			served()
		}
		if len(u.Triggers) == 0 {
			continue
		}
		s.mu.Lock()
		for _, trigger := range u.Triggers {
			s.took = append(s.took, now.Sub(trigger))
		}
		s.mu.Unlock()
	}
}

// arrived returns how many changes have come to nodes, each counted for each node.
func (s *simulated) arrived() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.took)
}

// reset forgets the changes so far.
func (s *simulated) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = nil
}

// close disconnects all nodes. It may be called for nil.
func (s *simulated) close() {
	if s != nil {
		s.stop()
		s.running.Wait()
	}
}
