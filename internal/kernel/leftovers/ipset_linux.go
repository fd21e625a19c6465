package leftovers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// proxySets are the sets of IPVS mode, without the prefixes that distinguish the families (pkg/proxy/ipvs/ipset.go).
var proxySets = []string{
	"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "LOAD-BALANCER-FW",
	"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP",
	"NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
}

// maxSetName is the maximum length of a set's name. kube-proxy truncates longer names.
const maxSetName = nl.IPSET_MAXNAMELEN - 1

// isProxySet reports whether kube-proxy has made the set of this name. Other programs, such as kube-router, also use
// the prefix KUBE-.
func isProxySet(name string) bool {
	return slices.ContainsFunc(proxySets, func(set string) bool {
		v6 := "KUBE-6-" + set
		return name == "KUBE-"+set || name == v6[:min(len(v6), maxSetName)]
	})
}

func sweepIPSets(ctx context.Context, do action) ([]Item, error) {
	names, err := listIPSets()
	if noSuchFeature(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing ipsets: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isProxySet(name) })
	var errs []error
	names = slices.DeleteFunc(names, func(name string) bool {
		if do == find {
			return false
		}
		// nf_tables lets go of the sets that rules refer to some time after the rules are gone.
		err := retry(ctx, func() error { return destroyIPSet(name) }, nl.IPSetError(nl.IPSET_ERR_BUSY))
		if errors.Is(err, unix.ENOENT) {
			return true // somebody else has destroyed it
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("destroying ipset %s: %w", name, err))
		}
		return err != nil
	})
	if len(names) == 0 {
		return nil, errors.Join(errs...)
	}
	slices.Sort(names)
	return []Item{{IPSets, "the kernel", names}}, errors.Join(errs...)
}

// listIPSets returns the names of all sets. netlink.IpsetListAll would read all that is in them.
func listIPSets() ([]string, error) {
	const listSetnames = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	flags := nl.NewRtAttr(nl.IPSET_ATTR_FLAGS|int(nl.NLA_F_NET_BYTEORDER), nl.BEUint32Attr(listSetnames))
	msgs, err := ipsetRequest(nl.IPSET_CMD_LIST, flags)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, msg := range msgs {
		if len(msg) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(msg[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type == nl.IPSET_ATTR_SETNAME {
				names = append(names, strings.TrimRight(string(a.Value), "\x00"))
			}
		}
	}
	return names, nil
}

func destroyIPSet(name string) error {
	_, err := ipsetRequest(nl.IPSET_CMD_DESTROY, nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	return err
}

func ipsetRequest(cmd int, arg *nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(cmd|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(cmd))
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	req.AddData(arg)
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errno, ok := errors.AsType[unix.Errno](err); ok && errno >= nl.IPSET_ERR_PRIVATE {
		err = nl.IPSetError(errno) // numbers of ipset's own
	}
	return msgs, err
}
