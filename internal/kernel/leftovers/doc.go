// Package leftovers removes what upstream kube-proxy leaves in a node's kernel, in each of its Linux modes.
//
// A kube-proxy that ends leaves its rules standing, so that connections survive its restart. On a node that goes over to
// another proxy they stay for good: nothing updates them, and some of them still decide where connections go. Everything here
// is done through the kernel's own interfaces: no program is executed, so that it works in an image with nothing but one
// static binary.
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
// Chains are recognized by the names that kube-proxy gives them (pkg/proxy/iptables, pkg/proxy/ipvs): fixed names,
// and for services and endpoints a prefix with 16 characters of a hash. The kubelet's KUBE-FIREWALL,
// KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT and, in old versions, KUBE-MARK-DROP stay. So do all other chains whose
// names begin with KUBE-, such as kube-router's. A rule in a built-in chain that jumps to one of the chains to which
// kube-proxy jumps from there is kube-proxy's. Every other rule outside its chains is somebody else's and stays as it
// is. If such a rule leads to a chain of kube-proxy, that chain also stays, because the rule cannot exist without it.
// KUBE-MARK-MASQ keeps its rules, which plugins for host ports rely on; any other chain is emptied. All virtual
// servers of the network namespace are taken: where kube-ipvs0 exists kube-proxy was their owner, and its own
// --cleanup takes them all.
//
// Sysctls that kube-proxy has set (route_localnet, arp_ignore, arp_announce, IPVS' sysctls) are not set back: their
// earlier values are not known, and other programs may now rely on the new ones.
//
// # When to call it
//
// A migration drops nothing if [Remove] is called after the new proxy's first whole state is in the kernel, and after
// the old kube-proxy has ended. A running kube-proxy would restore its rules within its sync period. Soon after is
// better than late, since nothing updates the old rules. It may be repeated at any time, and on every start.
// `--cleanup`, which ends with no proxy at all, calls it after the dataplane's own cleanup and prints one line for
// each [Item], as Item.String returns it, or that there was nothing to remove; it fails if Remove returns an error,
// which names each thing that is left and why.
//
// Until then both sets of rules stand, and a new connection gets its endpoint from whichever is asked first. Both
// translate in hooks of type nat at priority -100 (dstnat). The kernel asks hooks of the same priority in the order
// newest first (nf_hook_entries_grow in net/netfilter/core.c), and once one has translated the destination it asks no
// other (nf_nat_inet_fn in net/netfilter/nf_nat_core.c stops when nf_nat_initialized). So the newest table wins:
// Switchyard's on a node that migrates, kube-proxy's if it is started afterwards. The order holds for each table, not
// for each rule: rules that kube-proxy adds to its tables later do not make them newer. In both cases the connection
// goes to one endpoint that one of the two has chosen, and both choose from the same API. A reject or drop by the
// first also ends it.
//
// The rules that kube-proxy has in filter tables match addresses of services. They see packets after translation, and so none
// that was translated by either; and masquerading is decided by a mark which both use in the same way.
//
// # What happens to connections
//
// Flows in the connection tracking table are not touched, and their translation is stored there and not in rules: established
// connections go on. There are two exceptions. Connections through IPVS live in IPVS itself, and end with the virtual servers:
// a node of that mode should be drained first. And KUBE-FORWARD accepts forwarded packets of established connections, which
// matters only where the policy of the chain FORWARD is DROP and no other rule accepts them, as kube-proxy's own nftables mode
// requires as well.
//
// # To look only
//
// [Find] reports what Remove would remove, and changes nothing. A kube-proxy that still runs has the same in the kernel.
//
// # How long
//
// Each part goes when no kube-proxy that one migrates from can leave it: docs/adr/0021-kube-proxy-leftovers.md.
package leftovers
