package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ctusage"
)

func forwarding(_ context.Context, n *Node) []Finding {
	var found []Finding
	on, err := n.sysctl("net/ipv4/ip_forward")
	switch {
	case err != nil:
		found = unknown(err, "mount /proc/sys")
	case on == 0:
		found = []Finding{{
			Level: Fault, Summary: "net.ipv4.ip_forward is 0",
			Meaning: "this kernel forwards nothing: connections of pods, and from outside to pods, fail",
			Remedy:  "sysctl -w net.ipv4.ip_forward=1, and the same line in /etc/sysctl.d",
		}}
	default:
		found = fine("IPv4 packets are forwarded")
	}
	if !n.routesIPv6() {
		return found
	}
	on, err = n.sysctl("net/ipv6/conf/all/forwarding")
	switch {
	case err != nil:
		found = append(found, unknown(err, "mount /proc/sys")...)
	case on == 0:
		found = append(found, Finding{
			Level: Warning, Summary: "net.ipv6.conf.all.forwarding is 0, and this node has IPv6 addresses",
			Meaning: "connections of pods over IPv6 fail",
			Remedy:  "sysctl -w net.ipv6.conf.all.forwarding=1 if the cluster has IPv6; devices that learn their addresses need accept_ra=2, then",
		})
	default:
		found = append(found, fine("IPv6 packets are forwarded")...)
	}
	return found
}

// routesIPv6 reports whether there is an IPv6 address that is valid beyond this machine and its links.
func (n *Node) routesIPv6() bool {
	text, err := n.read("proc/net/if_inet6")
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		// address index length scope flags device
		if fields := strings.Fields(line); len(fields) == 6 && fields[3] == "00" {
			return true
		}
	}
	return false
}

// strict is the value of rp_filter at which a packet must come in by the device by which its answer would leave.
const strict = 1

func reversePath(_ context.Context, n *Node) []Finding {
	all, err := n.sysctl("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return unknown(err, "mount /proc/sys")
	}
	entries, err := fs.ReadDir(n.Files, "proc/sys/net/ipv4/conf")
	if err != nil {
		return unknown(err, "mount /proc/sys")
	}
	var devices []string
	for _, e := range entries {
		name := e.Name()
		if name == "all" || name == "default" || name == "lo" {
			continue
		}
		// The higher of the two counts (Documentation/networking/ip-sysctl.rst). A device may be gone by now.
		if own, err := n.sysctl("net/ipv4/conf/" + name + "/rp_filter"); err == nil && max(all, own) == strict {
			devices = append(devices, name)
		}
	}
	if len(devices) == 0 {
		return fine("no device insists on symmetric routes")
	}
	return []Finding{{
		Level: Warning, Summary: "rp_filter is 1 (strict) for " + listed(devices),
		Meaning: "a packet is dropped if its answer would leave by another device; NodePorts and load balancers fail on nodes with several uplinks, " +
			"and with network plugins that route both ways differently",
		Remedy: "sysctl -w net.ipv4.conf.all.rp_filter=2, which is loose, if clients cannot connect from outside; the higher value of all and the device counts",
	}}
}

// podBridges are bridges that network plugins make for pods.
var podBridges = []string{"cni0", "cbr0", "kube-bridge", "weave"}

func bridges(_ context.Context, n *Node) []Finding {
	devices := n.devices()
	at := slices.IndexFunc(podBridges, func(b string) bool { return slices.Contains(devices, b) })
	if at < 0 {
		return fine("pods are on no bridge that is known")
	}
	on, err := n.sysctl("net/bridge/bridge-nf-call-iptables")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unknown(err, "mount /proc/sys")
	}
	if on == 1 {
		return fine("packets between pods on bridge %s are tracked", podBridges[at])
	}
	return []Finding{{
		Level: Warning, Summary: fmt.Sprintf("pods are on bridge %s, and net.bridge.bridge-nf-call-iptables is not 1", podBridges[at]),
		Meaning: "answers between two pods of this node go over the bridge without being translated back; Services with an endpoint on the client's node time out",
		Remedy:  "modprobe br_netfilter, and sysctl -w net.bridge.bridge-nf-call-iptables=1",
	}}
}

func connectionTracking(_ context.Context, n *Node) []Finding {
	held, limit, err := ctusage.ReadFS(n.Files)
	if err != nil {
		return unknown(err, "mount /proc/sys")
	}
	if held == 0 && limit == 0 {
		return fine("connection tracking is not loaded yet; the first rule loads it")
	}
	f := Finding{Level: OK, Summary: fmt.Sprintf("%d of at most %d connections are tracked", held, limit)}
	if limit > 0 { // 0 is without a limit
		share := ctusage.Percent(held, limit)
		f.Summary += fmt.Sprintf(" (%d%%)", share)
		if share >= ctusage.NearlyFull {
			f.Level = Warning
			f.Meaning = ctusage.Meaning
			f.Remedy = ctusage.Remedy(limit)
		}
		if share >= ctusage.Full {
			f.Level = Fault
		}
	}
	found := []Finding{f}
	if dropped := n.conntrackDrops(); dropped > 0 {
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("since this machine started, connection tracking has dropped %d packets", dropped),
			Meaning: "the table was full, or had no memory; connections have failed for it",
			Remedy:  "compare the number with one from later (column drop of /proc/net/stat/nf_conntrack); if it grows, raise nf_conntrack_max",
		})
	}
	// Mode iptables drops such packets. A sysctl that is not there is one that nothing of these depends on.
	if liberal, err := n.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal"); err == nil && liberal == 0 && n.Mode != "iptables" {
		found = append(found, Finding{
			Level: Info, Summary: fmt.Sprintf("net.netfilter.nf_conntrack_tcp_be_liberal is 0, and mode %s does not drop packets outside of a connection's TCP window", n.Mode),
			Meaning: "they are not translated, as in kube-proxy's mode nftables: a client that gets one from an endpoint resets the connection; mode iptables drops them",
			Remedy:  "if connections through Services are reset under load, set conntrack.tcpBeLiberal: true in the configuration",
		})
	}
	return found
}

// conntrackDrops is how many packets were dropped, on all processors. Without the statistics it is 0.
func (n *Node) conntrackDrops() (total uint64) {
	text, err := n.read("proc/net/stat/nf_conntrack")
	if err != nil {
		return 0
	}
	head, rows, _ := strings.Cut(text, "\n")
	column := slices.Index(strings.Fields(head), "drop")
	for line := range strings.Lines(rows) {
		if fields := strings.Fields(line); column >= 0 && column < len(fields) {
			value, _ := strconv.ParseUint(fields[column], 16, 64)
			total += value
		}
	}
	return total
}

// ports compares the range of NodePorts with the ports that processes of the node use.
func ports(_ context.Context, n *Node) []Finding {
	first, last := n.NodePorts[0], n.NodePorts[1]
	var found []Finding
	if low, high, err := n.localPorts(); err != nil {
		found = unknown(err, "mount /proc/sys")
	} else if low <= last && first <= high && !n.reserved(max(low, first), min(high, last)) {
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("net.ipv4.ip_local_port_range is %d-%d, and NodePorts are %d-%d", low, high, first, last),
			Meaning: "a process of this node may connect from the port of a NodePort; answers to it that pass another node's translation, and its own listeners, get lost",
			Remedy: fmt.Sprintf("sysctl -w net.ipv4.ip_local_reserved_ports=%d-%d, or a range of local ports outside the NodePorts'",
				max(low, first), min(high, last)),
		})
	}
	if taken := n.listening(first, last); len(taken) > 0 {
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("processes listen on TCP ports in the range of NodePorts: %s", listed(taken)),
			Meaning: "a Service that gets such a port takes its connections from outside; health check node ports cannot be bound where one is taken. " +
				"Health check node ports of the proxy itself are among them",
			Remedy: "move the process to another port, or keep the port out of the API server's --service-node-port-range",
		})
	}
	if found == nil {
		return fine("nothing of this node uses the NodePorts %d-%d", first, last)
	}
	return found
}

// localPorts are those that the kernel gives to connections.
func (n *Node) localPorts() (low, high int, err error) {
	text, err := n.read("proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, fmt.Errorf("sysctl net.ipv4.ip_local_port_range: %w", err)
	}
	if _, err := fmt.Sscan(text, &low, &high); err != nil {
		return 0, 0, fmt.Errorf("sysctl net.ipv4.ip_local_port_range: %q is no range", text)
	}
	return low, high, nil
}

// reserved reports whether the kernel keeps all ports of a range to those who ask for them.
func (n *Node) reserved(first, last int) bool {
	text, _ := n.read("proc/sys/net/ipv4/ip_local_reserved_ports")
	next := first // the first one that is not known to be reserved; the kernel lists ranges in order
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		low, err1 := strconv.Atoi(from)
		high, err2 := strconv.Atoi(to)
		if err1 == nil && err2 == nil && low <= next && next <= high {
			next = high + 1
		}
	}
	return next > last
}

// stateListen is the state of a listening socket in /proc/net/tcp.
const stateListen = "0A"

// listening returns the TCP ports of a range that processes listen on, beyond loopback addresses or not.
func (n *Node) listening(first, last int) []string {
	var taken []int
	for _, path := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		text, err := n.read(path)
		if err != nil {
			continue // without the family
		}
		for i, line := range slices.Collect(strings.Lines(text)) {
			fields := strings.Fields(line)
			if i == 0 || len(fields) < 4 {
				continue
			}
			if fields[3] != stateListen {
				break // those that listen come first
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err == nil && first <= int(port) && int(port) <= last && !slices.Contains(taken, int(port)) {
				taken = append(taken, int(port))
			}
		}
	}
	slices.Sort(taken)
	var names []string
	for _, p := range taken {
		names = append(names, strconv.Itoa(p))
	}
	return names
}
