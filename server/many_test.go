package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
)

// The clients of these tests run in a separate process, so that their memory does not count as the server's. It is this
// test binary with these variables, for the socket and the number of clients.
const (
	envSocket  = "SWITCHYARD_TEST_CLIENTS_SOCKET"
	envClients = "SWITCHYARD_TEST_CLIENTS"
	envSilent  = "SWITCHYARD_TEST_CLIENTS_SILENT" // they only connect
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(envSocket); socket != "" {
		n, _ := strconv.Atoi(os.Getenv(envClients))
		run := watchers
		if os.Getenv(envFiles) != "" {
			run = reporters
		} else if os.Getenv(envSilent) != "" {
			run = holders
		}
		if err := run(socket, n); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// watchers watches with n clients, each on its own connection. It writes a line when all clients have the first update
// and have requested another, and a line after each further update that all have received. It ends with its input.
func watchers(socket string, n int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	errs := make(chan error, 1)
	fail := func(err error) {
		select {
		case errs <- err:
		default:
		}
	}
	updates := make(chan int, n)
	for range n {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithReadBufferSize(0))
		if err != nil {
			return err
		}
		stream, err := localnetv1.NewEndpointsClient(conn).Watch(ctx)
		if err != nil {
			return err
		}
		go func() {
			request := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{}, Ready: true}
			for {
				if err := stream.Send(request); err != nil && err != io.EOF { // receiving reports why it has ended
					fail(err)
					return
				}
				request = &localnetv1.WatchRequest{Ready: true}
				for whole := false; !whole; {
					m, err := stream.Recv()
					if err != nil {
						fail(err)
						return
					}
					whole = m.GetPosition() != nil
				}
				updates <- 1
			}
		}()
	}
	go func() {
		for {
			for range n {
				<-updates
			}
			fmt.Println("all")
		}
	}()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		fail(nil)
	}()
	return <-errs
}

// holders holds n connections that send nothing, until its input ends. It writes a line when it has made them.
func holders(socket string, n int) error {
	for range n {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
	}
	fmt.Println("connected")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// crowd is a process of watching clients.
type crowd struct {
	t     testing.TB
	lines chan string
	// stop ends the process.
	stop func()
}

func newCrowd(t testing.TB, socket string, n int) *crowd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envSocket+"="+socket, envClients+"="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &crowd{t, make(chan string, 100), sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(c.stop)
	return c
}

// all waits until every client has got an update.
func (c *crowd) all() {
	c.t.Helper()
	select {
	case line := <-c.lines:
		if line != "all" {
			c.t.Fatalf("the clients' process: %q", line)
		}
	case <-time.After(time.Minute):
		c.t.Fatal("not all clients have got an update within a minute")
	}
}

// memory is what this process holds: its heap and stacks, and its resident set, in bytes.
func memory(t testing.TB) (inUse, resident int) {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return int(m.HeapInuse + m.StackInuse), pages * os.Getpagesize()
}

// BenchmarkIdleClients measures the server's cost of a watching client that waits for a change.
func BenchmarkIdleClients(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w := newWorld(b, nil)
			w.sink.Update(services(100, 5), nil)
			w.sink.Complete()
			socket := filepath.Join(b.TempDir(), "s")
			serveAt(b, w, socket)
			c := newCrowd(b, socket, 1) // makes what is there once
			c.all()
			var inUse, resident int
			for b.Loop() {
				beforeInUse, beforeResident := memory(b)
				c := newCrowd(b, socket, n)
				c.all()
				time.Sleep(time.Second) // until the last request is there
				afterInUse, afterResident := memory(b)
				inUse, resident = inUse+afterInUse-beforeInUse, resident+afterResident-beforeResident
				c.stop()
				waitForClients(b, w, 1)
			}
			b.ReportMetric(float64(inUse)/float64(b.N*n)/1024, "KiB/client")
			b.ReportMetric(float64(resident)/float64(b.N*n)/1024, "resident-KiB/client")
		})
	}
}

// BenchmarkFanOut: one endpoint changes and 5,000 clients wait for it; until the last has it.
func BenchmarkFanOut(b *testing.B) {
	w := newWorld(b, nil)
	w.sink.Update(services(100, 5), nil)
	w.sink.Complete()
	socket := filepath.Join(b.TempDir(), "s")
	serveAt(b, w, socket)
	c := newCrowd(b, socket, 5000)
	c.all()
	n := 0
	for b.Loop() {
		n++
		changed := *service("service-00047", 47, 5)[1].(*model.EndpointSlice)
		changed.Endpoints[2].Addr = address(11, n)
		w.sink.Update([]model.Object{&changed}, nil)
		c.all()
	}
}

func serveAt(t testing.TB, w *world, socket string) {
	t.Helper()
	l, err := server.ListenUnix(socket, 0)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, w, l)
}

func serveOn(t testing.TB, w *world, l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, l, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
