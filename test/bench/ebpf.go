package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// EBPFOptions specifies what [EBPF] measures.
type EBPFOptions struct {
	// Options has numbers of services, 10, 10,000 and 100,000 by default.
	Options
	// Rounds is how many slices are measured of each kind of connection. Default: 16.
	Rounds int
	// Slice is how long each slice is. Default: 120 ms.
	Slice time.Duration
	// Flips is how often a route is changed while a reader dawdles. Default: 10,000,000.
	Flips int
	// Worker makes the command that runs [MeasureConnections].
	Worker func(ctx context.Context) *exec.Cmd
}

// The variants of connections that are compared.
const (
	variantDirect    = "direct"    // to the pod, without netfilter
	variantConntrack = "conntrack" // to the pod, on a node whose rules make the kernel track connections
	variantNFTables  = "nftables"
	variantEBPF      = "ebpf"  // hooks above nftables
	variantHooks     = "hooks" // hooks alone: nobody on the node tracks connections
)

const ebpfText = `# Comparison of socket hooks and nftables

Written by ` + "`bench ebpf --out docs/benchmarks`" + ` (%d CPUs, %s, %s, load average %s before and %s after). One run; everything in network
namespaces of one machine.

- **direct** is a connection to the pod itself: alone, and on a node whose rules make the kernel track connections (conntrack). Everything else
  goes through the cluster IP of a Service with %d endpoints, among so many Services.
- **nftables** and **ebpf** are clients on the same node, with the same rules. The clients of ebpf are in a cgroup with hooks, the others are not.
  **hooks** run without rules, so that the kernel does not track connections.
- Clients are processes of their own. Variants take turns at random in slices of %s ms, all nodes being up at the same time. A time is the tenth
  percentile of a slice, the least of %s slices. Other work on the machine only adds to it, so read differences. A rate is for one thread that makes sockets, connects and resets them, over its fastest 100 in a row.
- **request** is a socket, connect, one byte there and back, and reset; **ping** one byte there and back on a connection that stays.
- The programming time of hooks is the time of both together less the time of nftables, for each change.

## Connections

%s
## Programming and targets

**own** is the time of the hooks and **nftables** the time of nftables for the same change. Given are median and 99th percentile of up to 5,000 changes in a row. A cold load of hooks also makes programs and maps. Reading back compares the kernel with its desired contents. For nftables it is a restart, because a process that owns the tables need not read them.

- **hooks-over-direct** and **over-nftables** are differences of figures in the table above and of two more. **reconnect** is connect of a socket that had connected before. The hook stores no note for it, which leaves out most of the cost of getpeername. **unconcerned** is the cost for clients that connect to a pod itself.
- The targets of programming are for bare maps. The measurement includes the work that keeps hooks consistent with nftables. This work covers the settings of the node, the plan of a Service, and its contents in the maps.
- **flips**: a route changes to other endpoints, while a reader waits for 20 µs between the route and its slot, one time out of 16.

` + "```\n%s```\n"

// ebpfMatrix are the rows of the first table, in this order.
var ebpfMatrix = []struct{ title, name, unit string }{
	{"connect, from a pod", "pod-connect", "us"},
	{"connect, from the node", "node-connect", "us"},
	{"request, from a pod", "pod-request", "us"},
	{"ping, from a pod", "pod-ping", "us"},
	{"connections in a second, from a pod", "pod-connect-rate", "1/s"},
	{"connections in a second, from the node", "node-connect-rate", "1/s"},
}

// WriteEBPF writes the results of [EBPF] to a directory, as ebpf.md.
func WriteEBPF(dir string, r *Reporter) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	load := map[string]string{}
	var rounds, slice string
	var columns []Result // variants and sizes
	cells := map[string]float64{}
	var rest []reported
	for _, x := range r.results {
		name := strings.TrimPrefix(x.Name, "ebpf/")
		what, variant, found := strings.Cut(name, "/")
		switch {
		case strings.HasPrefix(name, "load-average-"):
			load[name] = readable(x.Value)
		case name == "slices":
			rounds = fmt.Sprint(x.Value)
		case name == "slice":
			slice = fmt.Sprint(x.Value)
		case found && isMatrixRow(what):
			column := Result{Name: variant, Services: x.Services}
			if what == ebpfMatrix[0].name {
				columns = append(columns, column)
			}
			cells[cellOf(what, column)] = x.Value
		default:
			rest = append(rest, x)
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprint(w, "| \t|")
	for _, c := range columns {
		title := c.Name
		if c.Services > 0 {
			title += " " + short(c.Services)
		}
		fmt.Fprintf(w, " %s\t|", title)
	}
	fmt.Fprintf(w, "\n|%s\n", strings.Repeat("---\t|", len(columns)+1))
	for _, row := range ebpfMatrix {
		fmt.Fprintf(w, "| %s, %s\t|", row.title, row.unit)
		for _, c := range columns {
			text := "" // not measured
			if v, ok := cells[cellOf(row.name, c)]; ok {
				text = readable(v)
			}
			fmt.Fprintf(w, " %s\t|", text)
		}
		fmt.Fprintln(w)
	}
	var list strings.Builder
	if err := errors.Join(w.Flush(), writeResults(&list, rest)); err != nil {
		return err
	}
	text := fmt.Sprintf(ebpfText, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly), load["load-average-before"],
		load["load-average-after"], measuredEndpoints, slice, rounds, &table, trimLines(list.String()))
	return writePage(dir, "ebpf.md", text)
}

func isMatrixRow(name string) bool {
	for _, row := range ebpfMatrix {
		if row.name == name {
			return true
		}
	}
	return false
}

func cellOf(what string, column Result) string {
	return fmt.Sprintf("%s/%s/%d", what, column.Name, column.Services)
}

// trimLines removes the spaces at the ends of lines.
func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// measuredEndpoints is how many endpoints the Service has that connections are made to. All are the same pod.
const measuredEndpoints = 5
