//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/usage"
)

// wayToCount is a way in which the kernel can count the connections of each frontend.
type wayToCount struct {
	name string
	// sets are what a table has for it, with %s for the elements. element is the one of a frontend, object what stands before the sets for it.
	sets, element, object string
	// rule comes before that which translates, slot comes behind a slot.
	rule, slot string
	// accounting has connection tracking count the packets and bytes of each connection.
	accounting bool
}

var waysToCount = []wayToCount{
	{name: "none"},
	{
		name: "element counters", sets: "set counts { type ipv4_addr . inet_proto . inet_service; counter; elements = { %s } }",
		element: "%s . udp . 80", rule: "ip daddr . meta l4proto . th dport @counts",
	},
	{name: "counters of slots", slot: " counter"},
	{
		name: "named counters", object: "counter f-%d { }\n",
		sets:    "map counts { type ipv4_addr . inet_proto . inet_service : counter; elements = { %s } }",
		element: "%s . udp . 80 : \"f-%d\"", rule: "counter name ip daddr . meta l4proto . th dport map @counts",
	},
	{
		name: "elements that rules add", sets: "set counts { type ipv4_addr . inet_proto . inet_service; size 65535; flags dynamic; }",
		rule: "update @counts { ip daddr . meta l4proto . th dport counter }",
	},
	{name: "accounting of conntrack", accounting: true},
}

// table returns what nft makes the table of: as many frontends as there are services, each with one endpoint.
func (w *wayToCount) table(services int) string {
	var objects, slots, elements strings.Builder
	for i := range services {
		a := fmt.Sprintf("203.%d.%d.%d", i>>16, i>>8&0xff, i&0xff)
		fmt.Fprintf(&slots, "%s . udp . 80%s : 192.0.2.9 . 8080,", a, w.slot)
		if w.object != "" {
			fmt.Fprintf(&objects, w.object, i)
		}
		if w.element != "" {
			args := []any{a, i}
			fmt.Fprintf(&elements, w.element+",", args[:strings.Count(w.element, "%")]...)
		}
	}
	slotCounter := strings.TrimSpace(w.slot)
	if slotCounter != "" {
		slotCounter += ";"
	}
	sets := w.sets
	if w.element != "" {
		sets = fmt.Sprintf(sets, elements.String())
	}
	return fmt.Sprintf(`table ip counting {
%s %s
map slots { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; %s elements = { %s } }
chain output { type nat hook output priority -100; jump service; }
chain service {
%s
dnat ip to ip daddr . meta l4proto . th dport map @slots
}
}
`, objects.String(), sets, slotCounter, slots.String(), w.rule)
}

// program makes the table, and returns the processor time that the kernel took for it.
func (w *wayToCount) program(b *testing.B, ns *netns.NS, services int) time.Duration {
	b.Helper()
	path := filepath.Join(b.TempDir(), "table.nft")
	if err := os.WriteFile(path, []byte(w.table(services)), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("nft", "-f", path)
	netnstest.Output(b, ns, cmd)
	took := cmd.ProcessState.SystemTime()
	return took
}

// BenchmarkWaysToCount compares ways to count the new connections of each frontend, in small tables made by the nft tool. It measures
// the processor time of the first datagram of a connection, and the kernel's time to program the table. Use -benchtime=20000x -count=7,
// and compare the least.
func BenchmarkWaysToCount(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		for _, w := range waysToCount {
			b.Run(fmt.Sprintf("%d services, %s", services, w.name), func(b *testing.B) {
				var took, programmed time.Duration
				for left := b.N; left > 0; left -= connectionsPerNS {
					node := newPacketNode(b)
					if w.accounting {
						netnstest.Do(b, node.ns, func() error { return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0) })
					}
					programmed = w.program(b, node.ns, services)
					took += node.send(b, firstDatagram(), min(left, connectionsPerNS), func(packet []byte, i int) {
						binary.BigEndian.PutUint16(packet[18:], uint16(i%services))
						binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
					})
				}
				usage.Report(b, took, 1)
				b.ReportMetric(float64(programmed.Nanoseconds())/float64(services), "program-ns/service")
			})
		}
	}
}

// BenchmarkMemoryToCount shows how much the kernel's memory grows for each frontend, from all of /proc/meminfo. Run nothing else at the
// time.
func BenchmarkMemoryToCount(b *testing.B) {
	const services = 60_000
	for _, w := range waysToCount {
		b.Run(w.name, func(b *testing.B) {
			for b.Loop() {
				ns := netnstest.New(b)
				before := kernelMemory(b)
				w.program(b, ns, services)
				b.ReportMetric(float64(kernelMemory(b)-before)/services, "bytes/service")
				ns.Close()
				time.Sleep(time.Second) // the kernel frees the table by and by
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// kernelMemory is what the kernel has for its objects, in bytes.
func kernelMemory(b *testing.B) (sum int64) {
	b.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes int64
		for _, field := range []string{"Slab:", "Percpu:"} {
			if n, _ := fmt.Sscanf(line, field+" %d kB", &kilobytes); n == 1 {
				sum += kilobytes << 10
			}
		}
	}
	return sum
}

// firstDatagram is an IPv4 header, UDP's, and no payload.
func firstDatagram() []byte {
	return []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 203, 0, 113, 1, 0, 0, 0, 80, 0, 8, 0, 0}
}

// BenchmarkCounters has the dataplane count or not, with 10 and 10,000 Services: the processor time of the first datagram of a
// connection, of
// a full update, of a change of endpoints, of a Service that goes and comes back, and of reading back what all have counted. Use
// -benchtime=1x -count=7, and compare the least.
func BenchmarkCounters(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		for _, on := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d services, counters %v", services, on), func(b *testing.B) { benchmarkCounters(b, services, Options{Counters: on}) })
		}
	}
}

func benchmarkCounters(b *testing.B, services int, o Options) {
	node := newPacketNode(b)
	dataplane := newBackend(b, node.ns, o)
	defer closeBackend(dataplane)
	dataplane.inspector.finder = dial(b, node.ns)
	udp := func(n, endpoints int) *state.Service {
		return serviceOf(fmt.Sprintf("s%d", n), clusterIPPort(state.IPv4, state.UDP, n, endpointsOf(state.IPv4, n, endpoints)))
	}
	all := make([]*state.Service, services)
	var keys []state.FrontendKey
	for n := range all {
		all[n] = udp(n, 3)
		keys = append(keys, all[n].Ports[0].Key(&all[n].Ports[0].Frontends[0]))
	}
	apply(b, dataplane, full(all...))

	sent := 0
	b.Run("first datagram", func(b *testing.B) {
		var took time.Duration
		for b.Loop() {
			took += node.send(b, firstDatagram(), connectionsPerNS, func(packet []byte, _ int) {
				copy(packet[16:], all[sent%services].Ports[0].Frontends[0].Addr.AsSlice())
				binary.BigEndian.PutUint16(packet[14:], uint16(sent>>15))
				binary.BigEndian.PutUint16(packet[20:], uint16(1024+sent&0x7fff))
				sent++
			})
		}
		usage.Report(b, took, connectionsPerNS)
	})
	one, other := udp(1, 3), udp(1, 2)
	const changes = 200
	for _, c := range []struct {
		name        string
		times       int
		counts      bool
		there, back func()
	}{
		{"endpoint leaves and comes back", changes, false, func() { apply(b, dataplane, delta(other)) }, func() { apply(b, dataplane, delta(one)) }},
		{
			"service goes and comes back", changes, false,
			func() { apply(b, dataplane, &state.Update{Removed: []state.ServiceName{one.Name}, Node: testNode}) }, func() { apply(b, dataplane, delta(one)) },
		},
		{"all services go and come back", 1, false, func() { apply(b, dataplane, full()) }, func() { apply(b, dataplane, full(all...)) }},
		{"reading all", 1, true, func() {
			if _, err := dataplane.Counts(keys); err != nil {
				b.Fatal(err)
			}
		}, func() {}},
	} {
		if c.counts && !o.Counters {
			continue
		}
		usage.Run(b, c.name, c.times, usage.Thread, func() { c.there(); c.back() })
	}
}
