package bench

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// DataplanesOptions specify what [Dataplanes] measures.
type DataplanesOptions struct {
	// Options has numbers of Services, 10 and 10,000 by default.
	Options
	// Names are the dataplanes to measure. Default: [DataplaneNames].
	Names []string
	// Rounds is how many slices are measured of each kind of connection, and Slice how long each is. Default: 5, 120 ms.
	Rounds int
	Slice  time.Duration
	// Limit is how long all may take. Measurements that do not fit into it are left out. Default: 3 minutes.
	Limit time.Duration
	// Connections makes the command that runs [MeasureConnections], Holder the one that runs [HoldDataplane].
	Connections, Holder func(ctx context.Context) *exec.Cmd
	// Progress gets what is being done, a line each. Nothing is written if it is nil.
	Progress io.Writer
}

func (o DataplanesOptions) withDefaults() DataplanesOptions {
	o.Options = o.Options.withDefaults(10, 10_000)
	setDefault(&o.Rounds, 5)
	setDefault(&o.Slice, 120*time.Millisecond)
	setDefault(&o.Limit, 3*time.Minute)
	if len(o.Names) == 0 {
		o.Names = DataplaneNames()
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// DataplaneNames are the dataplanes of Linux, with both variants of iptables.
func DataplaneNames() []string {
	return []string{"nftables", nameOfEBPF, "iptables-legacy", "iptables-nft", "ipvs", "userspace"}
}

// nameOfEBPF is socket hooks above nftables.
const nameOfEBPF = "ebpf"

// DataplaneReport is what [Dataplanes] has measured.
type DataplaneReport struct {
	CPUs        int       `json:"cpus"`
	Kernel      string    `json:"kernel"`
	Go          string    `json:"go"`
	Time        time.Time `json:"time"`
	LoadBefore  string    `json:"loadAverageBefore"`
	LoadAfter   string    `json:"loadAverageAfter"`
	Endpoints   int       `json:"endpoints"`
	Clients     int       `json:"clients"`
	Rounds      int       `json:"rounds"`
	SliceMillis float64   `json:"sliceMillis"`
	// Direct are connections to an endpoint itself, from a pod of its node and from outside, without any dataplane.
	Direct Paths `json:"direct"`
	// Rows are the dataplanes, each with all numbers of Services in order.
	Rows []DataplaneRow `json:"dataplanes"`
}

// DataplaneRow is what was measured of a dataplane with so many Services.
type DataplaneRow struct {
	Dataplane string `json:"dataplane"`
	Services  int    `json:"services"`
	// Missing is why there is nothing else, or no connections: the dataplane cannot run here, or there was no time left.
	Missing string `json:"missing,omitempty"`
	Programming
	Paths
}

// Programming is what a dataplane needs for Services. Times are milliseconds, memory is MiB.
type Programming struct {
	// ColdLoad is the time from opening the dataplane until all Services are in the kernel. WarmRestart is the same
	// time for another dataplane, which finds them there.
	ColdLoad    float64 `json:"coldLoadMillis"`
	WarmRestart float64 `json:"warmRestartMillis"`
	// ChangeP50 and ChangeP99 are of changes of one endpoint of one Service, Changes how many were made.
	ChangeP50 float64 `json:"changeP50Millis"`
	ChangeP99 float64 `json:"changeP99Millis"`
	Changes   int     `json:"changes"`
	// Memory is the resident memory of a process with all objects of the cluster in it.
	Memory float64 `json:"memoryMiB"`
}

// Paths are connections through the two kinds of frontends.
type Paths struct {
	// ClusterIP is from a pod on the node, NodePort from outside.
	ClusterIP ConnectionFigures `json:"clusterIP"`
	NodePort  ConnectionFigures `json:"nodePort"`
}

// ConnectionFigures are what connections cost. Times are microseconds.
type ConnectionFigures struct {
	// PerSecond is how many connections all clients together make and use in a second.
	PerSecond float64 `json:"connectionsPerSecond"`
	// RequestP50 and RequestP99 are of one client: a connection, a byte there and back, and a reset.
	RequestP50 float64 `json:"requestP50Micros"`
	RequestP99 float64 `json:"requestP99Micros"`
	// PingP50 and PingP99 are of a byte there and back on a connection that stays.
	PingP50 float64 `json:"pingP50Micros"`
	PingP99 float64 `json:"pingP99Micros"`
}

// WriteTables writes the report for people, as two tables in Markdown.
func (r *DataplaneReport) WriteTables(w io.Writer) error {
	programming := table("dataplane", "Services", "cold load, ms", "one change p50, p99, ms", "warm restart, ms", "memory, MiB")
	var neither, noConnections strings.Builder
	for _, row := range r.Rows {
		why := fmt.Sprintf("| %s | %s | %s |\n", row.Dataplane, short(row.Services), row.Missing)
		if row.ColdLoad == 0 {
			neither.WriteString(why)
			continue
		}
		programming.row(row.Dataplane, short(row.Services), readable(row.ColdLoad), both(row.ChangeP50, row.ChangeP99), readable(row.WarmRestart),
			readable(row.Memory))
		if row.Missing != "" {
			noConnections.WriteString(why)
		}
	}
	connections := table("dataplane", "Services", "connections/s", "request p50, p99, µs", "ping p50, p99, µs",
		"by NodePort: connections/s", "request p50, p99, µs", "ping p50, p99, µs")
	add := func(name, services string, p *Paths) {
		cells := []string{name, services}
		for _, f := range []ConnectionFigures{p.ClusterIP, p.NodePort} {
			cells = append(cells, readable(f.PerSecond), both(f.RequestP50, f.RequestP99), both(f.PingP50, f.PingP99))
		}
		connections.row(cells...)
	}
	add("direct", "-", &r.Direct)
	for _, row := range r.Rows {
		if row.Missing == "" {
			add(row.Dataplane, short(row.Services), &row.Paths)
		}
	}
	_, err := fmt.Fprintf(w, "%s%s\n%s%s", programming, neither.String(), connections, noConnections.String())
	return err
}

// both is a median and a 99th percentile.
func both(p50, p99 float64) string { return readable(p50) + ", " + readable(p99) }

// markdownTable is a Markdown table whose columns are also aligned for people.
type markdownTable struct {
	text strings.Builder
	w    *tabwriter.Writer
}

func table(titles ...string) *markdownTable {
	t := &markdownTable{}
	t.w = tabwriter.NewWriter(&t.text, 0, 0, 1, ' ', 0)
	t.row(titles...)
	t.row(strings.Split(strings.Repeat("--- ", len(titles)-1)+"---", " ")...)
	return t
}

func (t *markdownTable) row(cells ...string) {
	fmt.Fprintf(t.w, "| %s\t|\n", strings.Join(cells, "\t| "))
}

// String ends the table.
func (t *markdownTable) String() string {
	_ = t.w.Flush() // to memory
	return t.text.String()
}

const dataplanesText = `# Comparison of the dataplanes

Written by ` + "`switchyard bench dataplanes --out docs/benchmarks`" + ` (%d CPUs, Linux %s, %s, %s, load average %s before and %s after). Run it on your own node: it works in network namespaces and touches nothing else. [Choose a dataplane](../choose-a-dataplane.md) explains the figures.

%s
- **Cold load** is from opening the dataplane until all Services, with %d endpoints each, are in the kernel. **One change** replaces an endpoint. A **warm restart** is
  another process that finds everything in the kernel as it should be. **Memory** is the resident memory of a process with all objects of the cluster in it.
- **direct** is a connection to the pod itself, without any dataplane. The other connections go to one of that many Services. From a pod on the node they go to the cluster IP, and from outside to the NodePort.
- **connections/s** is how many %d clients and a server on the same machine make: a connection, a byte there and back, and a reset. **request** is the time of this sequence for one client. **ping** is the time of a byte there and back on a connection that stays.
- Other work on the machine only adds to a time. So connections are measured in %d slices of %s ms, with direct and all numbers of Services in turn. Each figure is from the best slice.
`

// WriteDataplanes writes a report to a directory, as dataplanes.md.
func WriteDataplanes(dir string, r *DataplaneReport) error {
	var tables strings.Builder
	if err := r.WriteTables(&tables); err != nil {
		return err
	}
	text := fmt.Sprintf(dataplanesText, r.CPUs, r.Kernel, r.Go, r.Time.Format(time.DateOnly), r.LoadBefore, r.LoadAfter, tables.String(), r.Endpoints, r.Clients,
		r.Rounds, readable(r.SliceMillis))
	return writePage(dir, "dataplanes.md", text)
}

// newDataplaneReport describes what is to be measured, and where.
func newDataplaneReport(o *DataplanesOptions, clients int) *DataplaneReport {
	return &DataplaneReport{
		CPUs: runtime.NumCPU(), Go: runtime.Version(), Time: time.Now().UTC(), Endpoints: o.Endpoints, Clients: clients, Rounds: o.Rounds,
		SliceMillis: Milliseconds(o.Slice),
	}
}
