package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// The reasons why a Reasoned endpoint gets no connections, other than missing room.
const (
	OtherFamily     = "OtherFamily"     // its address is not of its slice's family
	Special         = "Special"         // its address is one that no endpoint can have
	NoRoom          = "NoRoom"          // the service takes more than there is room for
	NotReady        = "NotReady"        // it is not ready, and not because it terminates
	Terminating     = "Terminating"     // it terminates, and others are ready
	NotServing      = "NotServing"      // it terminates, and serves no more
	OtherNode       = "OtherNode"       // it is not on this node, and has to be
	NoWeight        = "NoWeight"        // its weight is 0
	NodeUnready     = "NodeUnready"     // its node is unready, and others are not
	HintedElsewhere = "HintedElsewhere" // it is ready, and by hints in use not for here
	NoZoneWeight    = "NoZoneWeight"    // it is ready, and its kind of zone has weight 0
)

// Reasoned is an endpoint behind the service port that has a packet. It has a reason exactly if it does not get the packet.
type Reasoned struct {
	At      netip.AddrPort
	Reasons []string
}

// Endpoints lists all endpoints behind the service port to which a packet belongs, ordered and distinct; none if no service has it. Of
// endpoints with the same address and port, one is in the list. Whether the source may connect does not count.
func (w *World) Endpoints(p probe.Packet) []Reasoned {
	c, ok := w.addressClaim(p)
	if !ok {
		c, ok = w.nodePortClaim(p)
	}
	if !ok {
		return nil
	}
	family := state.FamilyOf(p.Dst.Addr())
	list := w.impossible(c, family)
	eps := w.endpointsOf(c.service, c.port, family)
	local := w.usesLocal(c, p)
	active := takers(eps)
	chosen, pool := w.clusterEndpoints(c.service, active), active
	if local {
		chosen, pool = w.localEndpoints(active), filter(active, func(ep endpoint) bool { return ep.NodeName == w.NodeName })
	}
	othersReady := slices.ContainsFunc(pool, isReady)
	first := w.firstOnes(filter(active, isReady))
	for _, ep := range eps {
		r := Reasoned{At: ep.at}
		gets := slices.ContainsFunc(chosen, func(o endpoint) bool { return o.at == ep.at })
		add := func(reason string, applies bool) {
			if applies {
				r.Reasons = append(r.Reasons, reason)
			}
		}
		if c.refuses {
			add(NoRoom, true)
		} else if ep.weight == 0 {
			add(NoWeight, true)
		} else if !gets {
			add(NotReady, !ep.Ready && !ep.Terminating)
			add(Terminating, !ep.Ready && ep.Terminating && ep.Serving && othersReady)
			add(NotServing, !ep.Ready && ep.Terminating && !ep.Serving)
			add(OtherNode, local && ep.NodeName != w.NodeName)
			_, _, zones := zoneWeightsOf(c.service)
			zones = zones && !w.nodeHintsCount(first)
			// A terminating endpoint that could get connections, because none is ready, is left out for its node only.
			unready := !local && (ep.Ready && !slices.ContainsFunc(first, func(o endpoint) bool { return o.at == ep.at }) ||
				!othersReady && isServingTerminating(ep))
			add(NodeUnready, unready)
			add(HintedElsewhere, !local && ep.Ready && !unready && !zones)
			add(NoZoneWeight, !local && ep.Ready && !unready && zones)
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Reasoned) int { return cmp.Or(a.At.Compare(b.At), slices.Compare(a.Reasons, b.Reasons)) })
	return slices.CompactFunc(list, func(a, b Reasoned) bool { return a.At == b.At && slices.Equal(a.Reasons, b.Reasons) })
}

// impossible lists what slices have behind a service port and no service can have.
func (w *World) impossible(c claim, f state.Family) (list []Reasoned) {
	for _, slice := range w.slicesOf(c.service.Name, f) {
		for _, sp := range slice.Ports {
			if sp.Name != c.port.Name || sp.Protocol != c.port.Protocol {
				continue
			}
			for _, ep := range slice.Endpoints {
				if reason := why(ep, f); reason != "" {
					list = append(list, Reasoned{netip.AddrPortFrom(ep.Addr, sp.Port), []string{reason}})
				}
			}
		}
	}
	return list
}

func why(ep model.Endpoint, f state.Family) string {
	switch {
	case state.FamilyOf(ep.Addr) != f:
		return OtherFamily
	case isSpecial(ep.Addr):
		return Special
	}
	return ""
}
