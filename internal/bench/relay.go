package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// relayChanges is how many single changes are measured.
const relayChanges = 50

// RelayOptions says what to measure.
type RelayOptions struct {
	Options
	// Nodes is how many nodes there are. Default: 5,000.
	Nodes int
	// Clients returns the command that runs [RelayClients] in another process. Required.
	Clients func(ctx context.Context, target string, nodes int) *exec.Cmd
}

// Relay measures a relay that serves many nodes: the memory that each connected node costs, and how long, with how much work
// and how many bytes, one changed endpoint takes until all nodes have it. The nodes are connections of another process on this
// machine, which takes its share of the processors; their own work with what they receive is left out.
func Relay(ctx context.Context, r *Reporter, o RelayOptions) error {
	o.Options = o.withDefaults(10_000)
	if o.Nodes == 0 {
		o.Nodes = 5000
	}
	for _, services := range o.Services {
		if err := measureRelay(ctx, r, services, o); err != nil {
			return err
		}
	}
	return nil
}

func measureRelay(ctx context.Context, r *Reporter, services int, o RelayOptions) error {
	done := r.Step("relay: %d services with %d endpoints, load", services, o.Endpoints)
	objects := spreadOver(Cluster(services, o.Endpoints), o.Nodes)
	changing := slicesIn(objects)
	if len(changing) == 0 {
		return errors.New("there is no endpoint to change; ask for at least one service and endpoint")
	}
	c := store.NewCluster(store.ClusterOptions{})
	defer c.Close()
	sink := c.Source("bench")
	sink.Update(objects, nil)
	sink.Complete()
	var out traffic
	api, err := serveAPI(ctx, func(node string) (state.Feed, error) { return c.Node(node), nil }, &out)
	done()
	if err != nil {
		return err
	}
	defer api.close()

	before := freedRSS()
	done = r.Step("relay: connect %d nodes", o.Nodes)
	clients, err := startRelayClients(o.Clients(ctx, api.target, o.Nodes))
	if err != nil {
		return err
	}
	defer clients.stop()
	all, err := clients.next()
	done()
	if err != nil {
		return err
	}
	report := func(name string, value float64, unit string) {
		r.Report(Result{"relay/" + name, services, o.Endpoints, value, unit})
	}
	report("nodes", float64(o.Nodes), "nodes")
	report("connect-all", all.Last.Sub(all.First).Seconds(), "s")
	settle(&out)
	report("memory-per-node", float64(freedRSS()-before)/1024/float64(o.Nodes), "KiB")

	sent, cpu := out.bytes(), processCPU()
	var took []time.Duration
	for n := range relayChanges {
		i := n % len(changing)
		changing[i] = withoutFirst(changing[i], n, services*o.Endpoints)
		start := time.Now()
		sink.Update([]model.Object{changing[i]}, nil)
		all, err := clients.next()
		if err != nil {
			return err
		}
		took = append(took, all.Last.Sub(start))
	}
	report("change-to-all-p50", Milliseconds(Percentile(took, 50)), "ms")
	report("change-to-all-max", Milliseconds(Percentile(took, 100)), "ms")
	report("cpu-per-change", Milliseconds(processCPU()-cpu)/relayChanges, "ms")
	settle(&out)
	report("bytes-per-change", float64(out.bytes()-sent)/relayChanges, "B")
	slice := usualSliceSize()
	report("api-server-bytes-per-change", float64(slice), "B")
	report("api-server-bytes-per-change-without-relay", float64(slice*o.Nodes), "B")
	return nil
}

// usualSliceSize is how many bytes of protobuf the API server sends to each watch of an EndpointSlice with 5 endpoints when it
// changes, without the frame of the event.
func usualSliceSize() int {
	c := newChurnCluster(1)
	c.flap(1, 0)
	return c.slices[1].Size()
}

// nodeNameOf is the name of the n-th of many nodes.
func nodeNameOf(n int) string { return fmt.Sprintf("node-%05d", n) }

// spreadOver returns objects with so many nodes, and their endpoints spread evenly over them.
func spreadOver(objects []model.Object, nodes int) []model.Object {
	names := make([]string, nodes)
	spread := slices.DeleteFunc(slices.Clone(objects), func(o model.Object) bool { return o.Ref().Kind == model.KindNode })
	for i := range names {
		names[i] = nodeNameOf(i)
		spread = append(spread, &model.Node{Name: names[i], Zone: churnZone(i)})
	}
	next := 0
	for _, slice := range slicesIn(spread) {
		for i := range slice.Endpoints {
			slice.Endpoints[i].NodeName = names[next%nodes]
			next++
		}
	}
	return spread
}

// freedRSS is the resident memory of this process without what it could give back.
func freedRSS() int64 {
	debug.FreeOSMemory()
	rss, err := RSS()
	if err != nil {
		return 0
	}
	return int64(rss)
}

// processCPU is how long this process has computed.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// relayClients is the process of the nodes.
type relayClients struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	report *json.Decoder
}

func startRelayClients(cmd *exec.Cmd) (*relayClients, error) {
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the nodes: %w", err)
	}
	return &relayClients{cmd, stdin, json.NewDecoder(stdout)}, nil
}

// next waits until all nodes have an update.
func (c *relayClients) next() (a allHave, err error) {
	if err := c.report.Decode(&a); err != nil {
		return a, fmt.Errorf("the nodes have ended: %w", err)
	}
	return a, nil
}

// stop ends the process.
func (c *relayClients) stop() {
	_ = c.stdin.Close()
	_ = c.cmd.Wait() // it was told to end, and has nothing more to say
}
