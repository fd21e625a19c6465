package bench

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// UserspaceOptions specify what [Userspace] measures.
type UserspaceOptions struct {
	// Rounds is how many slices are measured of everything, and Slice how long each is. Default: 8, 250 ms.
	Rounds int
	Slice  time.Duration
	// Held is the number of open connections that memory is measured with. Default: 10,000.
	Held int
	// Connections makes the command that runs [MeasureConnections], Holder the one that runs [HoldDataplane].
	Connections, Holder func(ctx context.Context) *exec.Cmd
}

// The ways of connections that are compared with the relay.
const (
	wayDirect  = "direct"   // to the pod
	wayKernel  = "nftables" // by cluster IP, translated by the kernel
	wayRelay   = "userspace"
	wayHAProxy = "haproxy"
)

// userspaceRows are the rows of the table, in this order.
var userspaceRows = []struct{ name, title string }{
	{"connections", "connections in a second"},
	{"request-p50", "request, p50, µs"},
	{"request-p99", "request, p99, µs"},
	{"ping-p50", "ping, p50, µs"},
	{"ping-p99", "ping, p99, µs"},
	{"request-cpu", "processor time of the relay for a connection, µs"},
	{"ping-cpu", "... for a byte there and back, µs"},
	{"stream-cpu", "... for a gigabyte of 100 streams, ms"},
	{"stream-1", "one stream, Gbit/s"},
	{"stream-100", "100 streams, Gbit/s"},
	{"memory-idle", "memory without connections, MiB"},
	{"memory-held", "memory with so many open connections, MiB"},
	{"datagrams", "UDP packets there and back in a second"},
}

const userspaceText = `# Comparison of the relay and HAProxy

Written by ` + "`bench userspace --out docs/benchmarks`" + ` (%d CPUs, %s, %s, load average %s before and %s after). %s. One run, in network namespaces of one machine, which also ran the clients and the server.

%s
- **direct** goes to the pod itself, **nftables** to a cluster IP that the kernel translates, and **userspace** to one of the relay of [mode userspace](../userspace.md). **haproxy** goes to HAProxy in TCP mode, with a thread for each CPU and splicing. It runs on the node of nftables: the kernel tracks its connections and the relay's alike.
- **connections** is how many %d clients make: a connection, a byte there and back, and a reset. **request** is the time of this sequence for one client. **ping** is the time of a byte there and back on a connection that stays.
- **Processor time** is the time of the process in user mode and in the kernel. Other work on the machine adds little to it.
- **memory** is the resident memory of the process; %d connections are open. The memory of the kernel's sockets is not included.
- UDP packets are of one flow with 32 on their way at a time.
- Each figure is from the best of %d slices of %s ms, which take turns, because other work on the machine makes it worse.
`

// WriteUserspace writes the results of [Userspace] to a directory, as userspace.md.
func WriteUserspace(dir string, u *UserspaceReport) error {
	t := table("", wayDirect, wayKernel, wayRelay, wayHAProxy)
	for _, row := range userspaceRows {
		cells := []string{row.title}
		for _, way := range []string{wayDirect, wayKernel, wayRelay, wayHAProxy} {
			text := ""
			if v, ok := u.Values[row.name+"/"+way]; ok {
				text = readable(v)
			}
			cells = append(cells, text)
		}
		t.row(cells...)
	}
	text := fmt.Sprintf(userspaceText, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly), u.LoadBefore, u.LoadAfter,
		strings.TrimSpace(u.HAProxy), t, u.Clients, u.Held, u.Rounds, readable(Milliseconds(u.Slice)))
	return writePage(dir, "userspace.md", text)
}

// UserspaceReport is what [Userspace] has measured: values by what and way, such as "ping-p50/haproxy".
type UserspaceReport struct {
	Values                         map[string]float64
	HAProxy, LoadBefore, LoadAfter string
	Clients, Held, Rounds          int
	Slice                          time.Duration
}
