package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// Capabilities (include/uapi/linux/capability.h).
const (
	capNetAdmin = 12
	capNetRaw   = 13
	capSysAdmin = 21
	capPerfmon  = 38
	capBPF      = 39
)

// permissions looks at what this process may do: the proxy's own capabilities cannot be read from here.
func permissions(_ context.Context, n *Node) []Finding {
	text, err := n.read("proc/self/status")
	if err != nil {
		return unknown(err, "mount /proc")
	}
	var held uint64
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			held, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	has := func(bit int) bool { return held&(1<<bit) != 0 }
	var missing []string
	if !has(capNetAdmin) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if n.Mode == "iptables" && !has(capNetRaw) {
		missing = append(missing, "CAP_NET_RAW")
	}
	if n.Mode == "ebpf" && !has(capSysAdmin) {
		if !has(capBPF) {
			missing = append(missing, "CAP_BPF")
		}
		if !has(capPerfmon) {
			missing = append(missing, "CAP_PERFMON")
		}
	}
	if len(missing) == 0 {
		return fine("this process has the capabilities that mode %s needs", n.Mode)
	}
	return []Finding{{
		Level: Fault, Summary: fmt.Sprintf("this process lacks %s, which mode %s needs", strings.Join(missing, ", "), n.Mode),
		Meaning: "a proxy with the same rights cannot program the kernel, and some of what follows cannot be checked",
		Remedy:  "run this as root, or add the capabilities to the container's securityContext",
	}}
}

func dataplanes(_ context.Context, n *Node) []Finding {
	var found []Finding
	for _, d := range n.Dataplanes {
		err := d.Available()
		used := d.Mode == n.Mode
		switch {
		case err == nil && used:
			found = append(found, fine("mode %s, which is in use, can run on this kernel", d.Mode)...)
		case err == nil:
			found = append(found, fine("mode %s can run on this kernel", d.Mode)...)
		case used && d.Mode == "ebpf":
			found = append(found, Finding{
				Level: Warning, Summary: fmt.Sprintf("mode ebpf, which is in use: %v", err),
				Meaning: "nftables translates all connections: nothing fails, but sockets are not translated when they connect",
				Remedy:  "provide what the message names: hooks need cgroup2 (ebpf.cgroupPath), and CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON; or set mode to nftables",
			})
		case used:
			found = append(found, Finding{
				Level: Fault, Summary: fmt.Sprintf("mode %s, which is in use, cannot run here: %v", d.Mode, err),
				Meaning: "the proxy ends at its start, unless allowModeFallback is set",
				Remedy:  "load the kernel modules or install the programs that the message names, or set mode to " + n.Dataplanes[0].Mode,
			})
		default:
			found = append(found, info("mode %s, which is not in use, cannot run here: %s", d.Mode, strings.ReplaceAll(err.Error(), "\n", "; "))...)
		}
	}
	return found
}

// edge looks whether connections can be handed over between nodes. Whether the network takes the answers, a running process finds out and reports.
func edge(_ context.Context, n *Node) []Finding {
	if n.EdgeAvailable == nil {
		return nil
	}
	err, used := n.EdgeAvailable(), n.EdgeMode != ""
	switch {
	case err == nil && used:
		return fine("the edge, which is in use (edge.mode %s), can run on this kernel", n.EdgeMode)
	case err == nil:
		return fine("the edge, which is not in use, can run on this kernel")
	case used:
		return []Finding{{
			Level: Warning, Summary: fmt.Sprintf("the edge, which is in use (edge.mode %s), cannot run here: %v", n.EdgeMode, err),
			Meaning: "nftables serves all connections of Services with endpoints on this node, on all nodes: nothing fails, and servers do not see the addresses of clients",
			Remedy:  "provide what the message names, or set edge.mode to none",
		}}
	}
	return info("the edge, which is not in use, cannot run here: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// proxy compares what the kernel holds with what a running proxy says.
func proxy(ctx context.Context, n *Node) []Finding {
	programmed, err := n.Programmed()
	if err != nil {
		return unknown(err, "run this as root")
	}
	health, err := n.Health(ctx)
	switch {
	case err != nil && !programmed:
		return fine("no proxy answers at %s, and the kernel holds no rules of Switchyard", n.HealthAddress)
	case err != nil:
		return []Finding{n.noAnswer(err)}
	}
	var found []Finding
	if holder, lockErr := n.Holder(); programmed && lockErr == nil && holder == "" {
		found = []Finding{n.abandoned(fmt.Sprintf("the process that answers at %s programs another kernel, or none", n.HealthAddress))}
	} else if health.Healthy {
		found = fine("the proxy at %s is healthy", n.HealthAddress)
	} else {
		found = []Finding{{
			Level: Fault, Summary: fmt.Sprintf("the proxy at %s reports that it is not healthy", n.HealthAddress),
			Meaning: "load balancers send elsewhere: the kernel lags behind, or this Node is going away",
			Remedy:  "look at the problems below, and at the proxy's log",
		}}
	}
	if !programmed {
		found = append(found, Finding{
			Level: Warning, Summary: "a proxy answers, and the kernel holds no rules of Switchyard in this network namespace",
			Meaning: "the proxy is another one, or serves another network namespace",
			Remedy:  "run this in the proxy's network namespace, such as by kubectl exec in its pod",
		})
	}
	for _, p := range health.Problems {
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("the proxy reports: %s: %s", p.Part, p.Message),
			Remedy: cmp.Or(partRemedies[p.Part], "do what the message says; 'switchyard get status' shows whether the problem remains"),
		})
	}
	return found
}

// noAnswer is the finding for rules in the kernel without a proxy that answers.
func (n *Node) noAnswer(err error) Finding {
	switch holder, lockErr := n.Holder(); {
	case lockErr == nil && holder == "":
		return n.abandoned(fmt.Sprintf("none answers at %s: %v", n.HealthAddress, err))
	case lockErr == nil:
		return Finding{
			Level: Warning, Summary: fmt.Sprintf("%s programs the kernel, and no proxy answers at %s: %v", holder, n.HealthAddress, err),
			Meaning: "the process is starting, hangs, or answers elsewhere",
			Remedy:  "give its address with --healthz-address, or look at its log",
		}
	}
	return Finding{
		Level: Warning, Summary: fmt.Sprintf("the kernel holds rules of Switchyard, and no proxy answers at %s: %v", n.HealthAddress, err),
		Meaning: "connections go where Services were when the proxy ended, unless a process that answers elsewhere updates the rules",
		Remedy:  "start the proxy again, give its address by --healthz-address if it listens elsewhere, or remove the rules with 'switchyard cleanup'",
	}
}

// abandoned is the finding for rules in the kernel that no process updates.
func (n *Node) abandoned(why string) Finding {
	return Finding{
		Level: Fault, Summary: "the kernel holds rules of Switchyard that no process updates: none holds the lock of this network namespace, and " + why,
		Meaning: "connections go where Services were when the proxy ended, also to endpoints that are gone",
		Remedy:  "start the proxy again, which takes over the rules, or remove them with 'switchyard cleanup'",
	}
}

// partRemedies are the remedies for problems whose messages name only a cause, by part.
var partRemedies = map[string]string{
	"source":               "correct the manifest that the message names, or see that this node reaches the API server and that the proxy's account may list and watch; until then, the proxy uses the last known objects",
	"api":                  "see that 'switchyard serve' or the relay runs, and that this node reaches it; until then, the proxy uses the last known objects",
	"nodes":                "see that the kubelet or the cloud's controller manager has filled in status.addresses and spec.podCIDRs of the Node",
	"dataplane":            "look at the proxy's log for the error of the kernel; the proxy tries again by itself",
	"services":             "look at the proxy's log for the error of the kernel; the proxy tries again by itself, and other Services are not affected",
	"tables":               "find the program that changes Switchyard's tables, and stop it; 'nft monitor' shows its changes",
	"healthCheckNodePorts": "end the process that listens on the port ('ss -ltnp'), or change spec.healthCheckNodePort",
	"dataplanes":           "look at the log of 'switchyard apply' on the node that the message names",
	"state":                "see that this node reaches the API server or the relay",
}

func leftBehind(ctx context.Context, n *Node) []Finding {
	items, err := n.Leftovers(ctx)
	var found []Finding
	for _, i := range items {
		found = append(found, Finding{
			Level: Warning, Summary: "of kube-proxy: " + i.String(),
			Meaning: "another kube-proxy runs on this node, or has ended and left this; its rules decide about connections that Switchyard does not translate first",
			Remedy:  "end kube-proxy on this node; 'switchyard proxy' removes what it left after its first whole state, and 'switchyard proxy --cleanup' at once",
		})
	}
	if err != nil {
		found = append(found, unknown(err, "run this as root")...)
	}
	if found == nil {
		return fine("nothing of kube-proxy is in the kernel")
	}
	return found
}

// signs are devices that other proxies make.
var signs = []struct{ device, who, remedy string }{
	{"cilium_host", "Cilium", "set kubeProxyReplacement to false in Cilium's configuration, or end Switchyard on this node"},
	{"kube-dummy-if", "kube-router", "run kube-router with --run-service-proxy=false, or end Switchyard on this node"},
	{"antrea-gw0", "Antrea", "set antreaProxy.proxyAll to false in Antrea's configuration, or end Switchyard on this node"},
}

// dstnat is the priority at which Switchyard translates, and most others do.
const dstnat = -100

// ours reports whether a table belongs to Switchyard: to the dataplane, or to the relay of mode userspace.
func ours(table string) bool {
	return table == "switchyard" || strings.HasPrefix(table, "switchyard-relay-")
}

// otherProxies looks for what else may translate connections to Services.
func otherProxies(_ context.Context, n *Node) []Finding {
	var found []Finding
	devices := n.devices()
	for _, s := range signs {
		if slices.Contains(devices, s.device) {
			found = append(found, Finding{
				Level: Warning, Summary: fmt.Sprintf("device %s: %s is on this node", s.device, s.who),
				Meaning: s.who + " can be a service proxy, too; if it is, both translate, and the first one decides",
				Remedy:  s.remedy,
			})
		}
	}
	chains, err := n.BaseChains()
	if err != nil {
		return append(found, unknown(err, "run this as root")...)
	}
	var beside []string
	for _, c := range chains {
		if c.Type != "nat" || c.Hook != nft.Prerouting && c.Hook != nft.Output || ours(c.Table) || c.Table == "kube-proxy" {
			continue
		}
		name := fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name)
		if c.Priority < dstnat {
			found = append(found, Finding{
				Level: Warning, Summary: fmt.Sprintf("nftables chain %s translates at priority %d, before Switchyard", name, c.Priority),
				Meaning: "where its rules match the address of a Service, they decide and Switchyard is not asked",
				Remedy:  fmt.Sprintf("look at it with 'nft list chain %s', and keep its rules off the addresses of Services", name),
			})
		} else {
			beside = append(beside, name)
		}
	}
	switch {
	case len(found) > 0:
		return found
	case len(beside) > 0:
		slices.Sort(beside)
		return fine("no other service proxy; other chains that translate: %s", listed(beside))
	}
	return fine("no other service proxy, and nothing else translates")
}

// firewall looks for what drops forwarded packets.
func firewall(_ context.Context, n *Node) []Finding {
	chains, err := n.BaseChains()
	if err != nil {
		return unknown(err, "run this as root")
	}
	var found []Finding
	for _, c := range chains {
		if c.Hook != nft.Forward || !c.Drops {
			continue
		}
		name := fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name)
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("chain %s drops forwarded packets that no rule accepts", name),
			Meaning: "connections to pods on other nodes, and from outside to pods, fail unless a rule accepts them; the rules were not looked at",
			Remedy: fmt.Sprintf("see that 'nft list chain %s' accepts the ranges of pods, as most network plugins arrange; or add the rules "+
				"'ct status dnat accept' for translated connections and 'ct state established,related accept'", name),
		})
	}
	names, err := n.read("proc/net/ip_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		found = append(found, unknown(err, "mount /proc")...)
	}
	if slices.Contains(strings.Fields(names), "filter") {
		found = append(found, fine("iptables-legacy has a table filter, whose policy is not looked at: see 'iptables-legacy -S FORWARD'")...)
	}
	if found == nil {
		return fine("nothing drops all forwarded packets")
	}
	return found
}
