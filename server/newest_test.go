package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
)

// TestNodesHaveFewStreams: the newest eight, over all connections, and others have none fewer for it.
func TestNodesHaveFewStreams(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		relay := watch(t, t.Context(), localnetv1.NewEndpointsClient(g.client("192.0.2.1", "relay", "switchyard:relays")), subscribe)
		relay.expect("1 full node")
		var all []*watcher
		for i := range 4 {
			node := localnetv1.NewEndpointsClient(g.node("192.0.2.1"))
			for range 5 {
				s := watch(t, t.Context(), node, subscribe)
				s.expect("1 full node")
				all = append(all, s)
			}
			open := 0
			for _, s := range all {
				if s.open() {
					open++
				}
			}
			if want := min(8, 5*(i+1)); open != want || !all[len(all)-1].open() {
				t.Errorf("%d streams are open, want %d, and among them the last", open, want)
			}
		}
		if err := <-all[0].ended; status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 8") {
			t.Errorf("the first ended with %v", err)
		}
		if !relay.open() {
			t.Error("the relay's stream has ended")
		}
	})
}

// TestNodesHaveFewConnections: the newest eight.
func TestNodesHaveFewConnections(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		for range 20 {
			next(t, t.Context(), localnetv1.NewEndpointsClient(g.node("192.0.2.1")), &localnetv1.NextFilter{})
		}
		synctest.Wait()
		if n := w.server.Clients(); n != 8 {
			t.Errorf("%d connections are open, want 8", n)
		}
		g.stop()
		if n := w.server.Clients(); n != 0 {
			t.Errorf("%d connections are open after the end", n)
		}
	})
}

// TestDeafStreamsEnd: also those that their client does not read.
func TestDeafStreamsEnd(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Update(services(2000, 5), nil)
		w.sink.Complete()
		g := openGate(t, w)
		for range 3 {
			node := localnetv1.NewEndpointsClient(g.node("192.0.2.1"))
			for range 8 {
				if _, err := node.Next(t.Context(), &localnetv1.NextFilter{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := w.server.Clients(); n != 1 {
			t.Errorf("%d connections are open, want that of the newest streams only", n)
		}
	})
}

// envFiles is a directory with the certificate of a node for the process of [reporters].
const envFiles = "SWITCHYARD_TEST_FILES"

// reporters opens 32 streams on each of n connections to an address, and sends as large a status as it may on each.
func reporters(address string, n int) error {
	dir := os.Getenv(envFiles)
	files := client.TLSFiles{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	certificates, err := client.NewCertificates(files, nil)
	if err != nil {
		return err
	}
	request := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{}, Status: &localnetv1.Status{FailedTotal: 100}}
	for i := range 100 {
		name := &localnetv1.ServiceName{Namespace: strings.Repeat("x", 150), Name: fmt.Sprint(i, strings.Repeat("y", 150))}
		request.Status.Failed = append(request.Status.Failed, &localnetv1.ServiceError{Service: name, Message: strings.Repeat("m", 900)})
	}
	var all sync.WaitGroup
	for range n {
		conn, err := client.Dial(client.Options{Target: address, Certificates: certificates})
		if err != nil {
			return err
		}
		for range 32 {
			all.Go(func() {
				stream, err := localnetv1.NewEndpointsClient(conn).Watch(context.Background())
				if err == nil {
					_ = stream.Send(request)
					_, _ = stream.Header() // it comes after the request was read
				}
			})
		}
	}
	all.Wait()
	fmt.Println("all")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// TestManyStreamsOfOneNode: whatever a node opens and reports with its certificate, it takes little memory.
func TestManyStreamsOfOneNode(t *testing.T) {
	var mu sync.Mutex
	statuses := make(map[uint64]server.Status) // as somebody may keep them
	largest := 0                               // of all that were reported; in the end there may be none, since no stream is opened again
	w := newWorld(t, func(o *server.Options) {
		o.OnStatus = func(c server.Client, s server.Status) {
			size := 0
			for name, reason := range s.Failed {
				size += len(name.Namespace) + len(name.Name) + len(reason)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[c.ID], largest = s, max(largest, size)
		}
		o.OnClose = func(c server.Client) {
			mu.Lock()
			defer mu.Unlock()
			delete(statuses, c.ID)
		}
	})
	w.sink.Complete()
	ca, dir := newAuthority(t), t.TempDir()
	address := serveTLS(t, w, ca.files(t.TempDir(), ca))
	nodeFiles(t, dir, ca, time.Hour)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "crt"), filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair}}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch(t, soon(t), localnetv1.NewEndpointsClient(conn), subscribe).expectLong()
	before := heap()

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envSocket+"=tcp://"+address, envClients+"=64", envFiles+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	line := make([]byte, 3)
	if _, err := io.ReadFull(stdout, line); err != nil || string(line) != "all" {
		t.Fatalf("the clients said %q, %v", line, err)
	}
	kept, clients := 0, 0
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		kept = len(statuses)
		mu.Unlock()
		clients = w.server.Clients()
		// On a loaded machine, the ends of replaced connections are noticed late. A connection that replaces another one counts for a moment.
		if kept <= 8 && clients <= 8 || time.Now().After(end) {
			break
		}
	}
	grown := heap() - before
	mu.Lock()
	defer mu.Unlock()
	if largest > 4<<10 || largest == 0 {
		t.Errorf("the largest status has %d bytes, want some and at most 4,096", largest)
	}
	t.Logf("%d statuses are kept, and %d KiB are used", kept, grown>>10)
	if kept > 8 || clients > 8 || grown > 16<<20 {
		t.Errorf("2,048 streams of one node on 64 connections: %d are open on %d connections, and take %s", kept, clients, strconv.Itoa(grown>>20)+" MiB")
	}
}
