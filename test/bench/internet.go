package bench

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
)

const (
	// internetPart is which part of the nodes must have a change.
	internetPart = 0.999
	// internetProcessors is how many processors each relay of the model has.
	internetProcessors = 2
	// internetBurst is how many changes come in one second of a busy cluster.
	internetBurst = 100
)

// internetTrees are the trees that are compared: how many relays there are at each level, those that follow the API server first.
var internetTrees = [][]int{{10}, {25}, {50}, {3, 10}, {3, 25}, {3, 50}, {3, 100}, {3, 10, 100}}

// InternetOptions specifies what to model.
type InternetOptions struct {
	// RelayOptions has the processes with which costs are measured. Nodes is how many nodes the cluster has. Default: 50,000.
	RelayOptions
	// Costs is a file with the results of an earlier run, whose costs are used. Default: they are measured.
	Costs string
}

// Internet predicts with a discrete-event model how trees of relays perform in a cluster that is too large to be run
// here: 100,000 services with 5 endpoints, 50,000 nodes. It measures the cost of a relay, a change and a node in the
// same run, in a tree of three relays that have all objects of that cluster, and 150 of its nodes. The model's
// processors have the speed measured there. Its links have no limit, and only the delay between processes on one
// machine.
func Internet(ctx context.Context, r *Reporter, o InternetOptions) error {
	o.Options = o.withDefaults(100_000)
	if o.Nodes == 0 {
		o.Nodes = 50_000
	}
	for _, services := range o.Services {
		var costs internetCosts
		var err error
		if o.Costs != "" {
			costs, err = readCosts(o.Costs, services, o.Endpoints)
		} else {
			costs, err = measureCosts(ctx, r, services, o.Nodes, o.RelayOptions)
		}
		if err != nil {
			return err
		}
		for _, f := range costs.fields() {
			r.Report(Result{costPrefix + f.name, services, o.Endpoints, *f.value, f.unit})
		}
		internetTable(r, services, o, &costs)
	}
	return nil
}

// internetResult is what the model says of one tree.
type internetResult struct {
	name string
	// bytes of the API server to begin and for a change
	apiStart, apiChange float64
	// seconds until most nodes have a change, the slowest of many changes in a second, have all again after a leaf was lost, and after
	// all have started at once
	change, burst, lost, start float64
	// part of the processors of the busiest relay and leaf while there are many changes, and memory of a leaf and at most
	topLoad, leafLoad, leafMemory, leafPeak float64
	// bytes in a second that a leaf sends in a burst, and all that it sends to begin
	leafBurst, leafStart float64
}

// internetTable reports what the model says of all trees.
func internetTable(r *Reporter, services int, o InternetOptions, c *internetCosts) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "relays\tAPI list\tAPI change\tchange 99.9%%\tat %d/s\tleaf lost\tall start\ttop CPU\tleaf CPU\tleaf memory\tpeak\tleaf sends at %d/s\tto begin\t\n", internetBurst, internetBurst)
	nodes := float64(o.Nodes)
	fmt.Fprintf(w, "none\t%.0f MB\t%.0f KB\t\t\t\t\t\t\t\t\t\t\t\n", nodes*c.APIServeNode/1e6, nodes*c.APIChange/1e3)
	for _, levels := range internetTrees {
		x := modelTree(tree{levels, o.Nodes, internetProcessors}, c)
		fmt.Fprintf(w, "%s\t%.0f MB\t%.1f KB\t%.3f s\t%.3f s\t%.1f s\t%.0f s\t%.0f%%\t%.0f%%\t%.0f MiB\t%.0f MiB\t%.1f MB/s\t%.1f GB\t\n", x.name, x.apiStart/1e6, x.apiChange/1e3,
			x.change, x.burst, x.lost, x.start, 100*x.topLoad, 100*x.leafLoad, x.leafMemory/(1<<20), x.leafPeak/(1<<20), x.leafBurst/1e6, x.leafStart/1e9)
		for _, f := range []costField{
			{"api-server-list", "B", &x.apiStart}, {"api-server-change", "B", &x.apiChange},
			{"change", "s", &x.change}, {"burst", "s", &x.burst}, {"leaf-lost", "s", &x.lost}, {"all-start", "s", &x.start},
			{"top-cpu", "of its processors", &x.topLoad}, {"leaf-cpu", "of its processors", &x.leafLoad},
			{"leaf-memory", "B", &x.leafMemory}, {"leaf-memory-peak", "B", &x.leafPeak}, {"leaf-burst", "B/s", &x.leafBurst}, {"leaf-start", "B", &x.leafStart},
		} {
			r.Report(Result{"internet/" + x.name + "/" + f.name, services, o.Endpoints, *f.value, f.unit})
		}
	}
	_ = w.Flush() // to a string
	r.Note("%d services, %d nodes, relays with %d processors:\n%s", services, o.Nodes, internetProcessors, text.String())
}

// modelTree runs the model of one tree.
func modelTree(t tree, c *internetCosts) (x internetResult) {
	x.name = strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Levels), "[]"), " ", "+")
	tops := float64(t.Levels[0])
	x.apiStart, x.apiChange = tops*c.APIServe, tops*c.APIChange

	s := newTreeSim(t, c.treeCosts, internetPart)
	revision := s.changeAt(0)
	s.run()
	x.change = s.done[revision]

	s = newTreeSim(t, c.treeCosts, internetPart)
	for i := range internetBurst {
		s.changeAt(float64(i) / internetBurst)
	}
	s.run()
	for i := range internetBurst {
		x.burst = max(x.burst, s.done[2+i]-float64(i)/internetBurst)
	}
	load := func(r *simRelay) float64 { return r.busy / float64(t.Processors) }
	x.topLoad, x.leafLoad = load(s.levels[0][0]), load(s.leaves()[0])

	s = newTreeSim(t, c.treeCosts, internetPart)
	s.loseLeaf()
	s.run()
	x.lost = s.done[1]

	s = newTreeSim(t, c.treeCosts, internetPart)
	s.startAll()
	s.run()
	x.start = s.done[1]

	nodes := float64(len(s.leaves()[0].followers))
	x.leafMemory = c.Memory + nodes*c.NodeMemory
	x.leafPeak = x.leafMemory * c.Peak
	x.leafBurst, x.leafStart = nodes*c.NodeChangeBytes*internetBurst, nodes*c.NodeServeBytes
	return x
}
