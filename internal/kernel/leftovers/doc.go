// Package leftovers removes what upstream kube-proxy leaves in a node's kernel, in each of its Linux modes.
//
// A kube-proxy that ends leaves its rules in place, so that connections survive its restart. On a node that changes to
// another proxy they stay forever. Nothing updates them, and some of them still decide where connections go. The
// package uses the kernel's own interfaces and executes no program. So it works in an image with a single static
// binary.
//
//	what                                              how it is read and removed
//	chains of iptables-nft and ip6tables-nft, and     nf_tables over netlink: one transaction for each table
//	the jumps to them
//	the same of iptables-legacy, ip6tables-legacy     x_tables socket options: the whole table is replaced at once, its
//	                                                  counters are kept, the lock /run/xtables.lock is held; only tables
//	                                                  that exist are read, because to ask for one makes it
//	tables kube-proxy (ip, ip6) of nftables mode      nf_tables over netlink: one transaction
//	IPVS virtual servers and device kube-ipvs0        generic netlink and rtnetlink, only where there is that device
//	ipsets of IPVS mode                               netlink, after the rules that refer to them
//
// # What is whose
//
// Chains are recognized by the names that kube-proxy gives them (pkg/proxy/iptables, pkg/proxy/ipvs). These are fixed
// names, and a prefix with 16 characters of a hash for services and endpoints. The kubelet's KUBE-FIREWALL,
// KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT and, in old versions, KUBE-MARK-DROP stay. So do all other chains whose names
// begin with KUBE-, such as kube-router's.
//
// Some rules in built-in chains jump to kube-proxy's chains. Such a rule is kube-proxy's if kube-proxy jumps from the
// same built-in chain to the same chain. Every other rule outside its chains is foreign and stays unchanged. If such a
// rule leads to a chain of kube-proxy, that chain also stays, because the rule cannot exist without it. KUBE-MARK-MASQ
// keeps its rules, because plugins for host ports rely on them. Any other chain is emptied.
//
// All virtual servers of the network namespace are removed. Where kube-ipvs0 exists, kube-proxy was their owner, and
// its own --cleanup removes all of them.
//
// Sysctls that kube-proxy has set (route_localnet, arp_ignore, arp_announce, IPVS' sysctls) keep their values. Their
// earlier values are not known, and other programs may now rely on the new ones.
//
// # When to call it
//
// A migration drops nothing if [Remove] is called once the kernel has the new proxy's first whole state and the old
// kube-proxy has ended. A running kube-proxy would restore its rules within its sync period. Call Remove soon
// after that, because nothing updates the old rules. It may be repeated at any time, and on every start. `--cleanup`,
// which ends with no proxy at all, calls Remove after the dataplane's own cleanup. It prints one line for each [Item],
// as Item.String returns it, or that there was nothing to remove. It fails if Remove returns an error, which names each
// remaining thing and the reason.
//
// Until then the kernel has both sets of rules, and the first one that it evaluates chooses the endpoint of a new
// connection. Both translate in hooks of type nat at priority -100 (dstnat). The kernel evaluates the newest of several
// hooks of the same priority first (nf_hook_entries_grow in net/netfilter/core.c). Once a hook has translated the
// destination, the kernel evaluates no other (nf_nat_inet_fn in net/netfilter/nf_nat_core.c stops when
// nf_nat_initialized). So the newest table wins. It is Switchyard's on a node that migrates, and kube-proxy's if
// kube-proxy is started afterwards. The order holds for tables. Rules that kube-proxy adds to its tables later do not
// make the tables newer. In both cases one of the two has chosen the endpoint of the connection, and both choose from
// the same API. A reject or drop by the first also ends the connection.
//
// The rules that kube-proxy has in filter tables match addresses of services. They see packets after translation, and
// so no packet that either proxy has translated. Both proxies use the same mark in the same way to decide on
// masquerading.
//
// # What happens to connections
//
// Remove deletes no flows in the connection tracking table. The table stores their translation, independent of rules,
// so that established connections go on. There are two exceptions. Connections through IPVS are stored in IPVS itself,
// and end with the virtual servers, so drain a node of that mode first. The second exception is KUBE-FORWARD, which
// accepts forwarded packets of established connections. This only matters where the policy of the chain FORWARD is DROP
// and no other rule accepts the packets. kube-proxy's own nftables mode has the same requirement.
//
// # To look only
//
// [Find] reports what Remove would remove, and changes nothing. A running kube-proxy has the same content in the
// kernel.
//
// # How long
//
// docs/adr/0021-kube-proxy-leftovers.md says when each part of this package is no longer needed.
package leftovers
