package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

func join[T fmt.Stringer](list []T, with string) string {
	if len(list) == 0 {
		return "nobody"
	}
	var texts []string
	for i, x := range list {
		if i == maxNamed {
			texts = append(texts, fmt.Sprintf("and %d more", len(list)-maxNamed))
			break
		}
		texts = append(texts, x.String())
	}
	return strings.Join(texts, with)
}

// maxNamed is how many items of one kind a sentence names.
const maxNamed = 8

func oneOf(n int, noun string) string {
	if n == 1 {
		return "the only " + noun
	}
	return fmt.Sprintf("one of %d %ss", n, noun)
}

// notAdmitted is why a client may not connect to a load balancer IP, and what can be done about it.
func notAdmitted(c Connection, sources []netip.Prefix) (because, remedy string) {
	if !c.Src.IsValid() {
		return fmt.Sprintf("only clients in %s may connect to the load balancer IP", join(sources, ", ")),
			"ask again with the client's address; if it is in none of the ranges, add it to spec.loadBalancerSourceRanges"
	}
	return fmt.Sprintf("the client %v is not among those that may connect to the load balancer IP: %s", c.Src, join(sources, ", ")),
		"add the client's address to spec.loadBalancerSourceRanges, as it arrives at this node"
}

// nodeText says where an endpoint is.
func nodeText(name string) string {
	if name == "" {
		return "no known node"
	}
	return "node " + name
}

func inText(r *brain.EndpointReasons) string {
	switch ep := r.Endpoint; {
	case !ep.Ready:
		return "terminating, but still serving"
	case ep.Terminating:
		return "ready, because the Service publishes endpoints that are not ready"
	}
	return "ready"
}

// outText is why an endpoint gets no connections, in words.
func (v *view) outText(r *brain.EndpointReasons, policy brain.Policy, reasons *brain.PortReasons) string {
	var texts []string
	for _, reason := range r.Out(policy) {
		texts = append(texts, v.reasonText(reason, r, reasons))
	}
	return strings.Join(texts, "; ")
}

func (v *view) reasonText(reason brain.Reason, r *brain.EndpointReasons, reasons *brain.PortReasons) string {
	switch reason {
	case brain.NotReady:
		if p := v.facts.At(r.Addr.Addr(), r.Endpoint.NodeName); p != nil && p.NotReady != "" {
			return "not ready: " + p.NotReady
		}
		return "not ready"
	case brain.Terminating:
		return "terminating, while others are ready"
	case brain.NotServing:
		return "terminating, and serving no more"
	case brain.OtherNode:
		return "not on this node, and the policy is Local"
	case brain.NoWeight:
		return "its weight is 0: " + r.Slice.WeightName() + " of slice " + r.Slice.Name
	case brain.NodeUnready:
		return "its node is unready, while others are not"
	case brain.HintedElsewhere:
		if reasons.NodeHints == brain.HintsUsed {
			return "hinted for " + nodesText(r.Endpoint.NodeHints)
		}
		return "hinted for " + zonesText(r.Endpoint.ZoneHints)
	case brain.NoZoneWeight:
		return fmt.Sprintf("it is in zone %s, and %s", r.Endpoint.Zone, noZoneWeight)
	case brain.Duplicate:
		return "another endpoint with the same address and port counts"
	case brain.Special:
		return fmt.Sprintf("its address is %s, which no endpoint can have", model.Special(r.Addr.Addr()))
	case brain.OtherFamily:
		return "its address is not of the family of its EndpointSlice"
	case brain.NoRoom:
		return "the Service has more endpoints and frontends than it may have"
	}
	return string(reason)
}

func nodesText(names []string) string { return diagnosis.Plural("node", names) }
func zonesText(names []string) string { return diagnosis.Plural("zone", names) }

func sliceText(s *brain.SliceReasons, p *state.Port) string {
	switch s.Reason {
	case brain.Headless:
		return "it has the label service.kubernetes.io/headless, and no service proxy takes it"
	case brain.OtherProxy:
		return "it has not the label service.kubernetes.io/service-proxy-name of this proxy"
	case brain.OtherFamily:
		if s.Slice.Family == 0 {
			return "its addressType is no IP family, and no service proxy takes it"
		}
		return fmt.Sprintf("it is of %v", s.Slice.Family)
	case brain.NoSuchPort:
		var has []string
		for _, sp := range s.Slice.Ports {
			has = append(has, portText(sp.Name, sp.Protocol))
		}
		if len(has) == 0 {
			return fmt.Sprintf("it has no port at all, and the Service's is %s", portText(p.Name, p.Protocol))
		}
		return fmt.Sprintf("it has the %s, and the Service's is %s: name and protocol must be the same", diagnosis.Plural("port", has), portText(p.Name, p.Protocol))
	}
	return string(s.Reason)
}

func portText(name string, protocol state.Protocol) string {
	if name == "" {
		return fmt.Sprintf("without a name/%v", protocol)
	}
	return fmt.Sprintf("%s/%v", name, protocol)
}

// policies names the rules that choose among endpoints.
func (v *view) policies(a *Answer, c Connection, h held, policy brain.Policy, reasons *brain.PortReasons, why *store.Explanation) {
	field, local := "externalTrafficPolicy", reasons.External == brain.PolicyLocal
	if h.frontend.Kind == state.ClusterIP {
		field, local = "internalTrafficPolicy", reasons.Internal == brain.PolicyLocal
	}
	switch {
	case policy == brain.PolicyLocal:
		a.policy(field, "Local", fmt.Sprintf("only endpoints on this node, %s", v.node.Name))
	case local:
		a.policy(field, "Local", fmt.Sprintf("but the client is %s, for which endpoints on all nodes count", classText(c.Class)))
	default:
		a.policy(field, "Cluster", "endpoints on all nodes")
	}
	if policy == brain.PolicyCluster {
		a.nodeHealth(reasons, why)
	}
	v.shares(a, policy, reasons, why)
	if policy == brain.PolicyLocal && reasons.LocalTerminates || policy == brain.PolicyCluster && reasons.ClusterTerminates {
		if slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return e.Gets }) {
			a.policy("terminating endpoints", "Used", "no endpoint is ready: those that still serve while they terminate get connections")
		}
		return
	}
	if policy == brain.PolicyCluster {
		a.hints("node", reasons.NodeHints, v.node.Name)
		a.hints("zone", reasons.ZoneHints, why.Zone)
	}
}

// hints names what hints of a kind do. here is the node or its zone.
func (a *Answer) hints(kind string, use brain.HintUse, here string) {
	where := fmt.Sprintf("%s %s", kind, here)
	if here == "" {
		where = "this node, whose zone is not known"
	}
	switch use {
	case brain.HintsUsed:
		a.policy(kind+" hints", string(use), fmt.Sprintf("only endpoints that are hinted for %s", where))
	case brain.SomeUnhinted:
		a.policy(kind+" hints", string(use), "not all ready endpoints have hints, so that none counts (the safeguard)")
	case brain.NoneForHere:
		a.policy(kind+" hints", string(use), fmt.Sprintf("no ready endpoint is hinted for %s, so that hints do not count", where))
	}
}

func classText(c Class) string {
	switch c {
	case Pod:
		return "a pod"
	case Node:
		return "this node"
	}
	return "outside of the cluster"
}

// wayBack fills in the address that the server sees, and the route of its answers.
func (v *view) wayBack(a *Answer, c Connection, h held, m state.Masquerade) {
	gets, masqueraded, hairpins, host, remote := 0, 0, 0, 0, 0
	for _, e := range a.Endpoints {
		switch {
		case !e.Gets:
			continue
		case slices.Contains(v.local, e.Addr.Addr()):
			host++
		case e.Masqueraded:
			masqueraded++
		}
		gets++
		if e.Addr.Addr() == c.Src {
			hairpins++
		}
		if e.Node != v.node.Name && !e.Masqueraded && !slices.Contains(v.local, e.Addr.Addr()) {
			remote++
		}
	}
	own := ownAddress(c)
	ofNode := "an address of node " + v.node.Name
	if i := slices.IndexFunc(v.node.Addresses, func(x netip.Addr) bool { return x.Is4() == c.Dst.Addr().Is4() }); i >= 0 {
		ofNode += fmt.Sprintf(", such as %v", v.node.Addresses[i])
	}
	switch {
	case masqueraded == 0 || c.Class == Node && masqueraded+host == gets:
		a.Source = own
		if c.Class == Node {
			a.Source = ofNode
		}
	case masqueraded == gets && masqueraded == hairpins:
		a.Source = ofNode + ", instead of the client's: the client is its own server, and would answer itself without the node"
	case masqueraded+host == gets && masqueraded > hairpins:
		a.Source = fmt.Sprintf("%s, instead of the client's: %s", ofNode, whyMasqueraded(m, h.frontend.Kind))
	default:
		a.Source = own
		if hairpins > 0 {
			a.Source += fmt.Sprintf("; where the client is its own server, %s", ofNode)
		}
	}
	if host > 0 && masqueraded > 0 {
		a.Source += "; an endpoint that is the node itself sees the client"
	}
	here := c.Class == Node || c.Src.IsValid() && v.isHere(c.Src) || admits(v.node.PodCIDRs, c.Src)
	switch {
	case remote == 0 && masqueraded == 0 && !here:
		a.WayBack = fmt.Sprintf("the server is on this node: its answers pass here, and leave from %v", c.Dst)
	case remote > 0 && !here:
		a.WayBack = fmt.Sprintf("servers on other nodes answer the client directly, unless the network takes their answers through this node: "+
			"an answer that does not leave from %v is lost, and the connection hangs", c.Dst)
		a.Notes = append(a.Notes, "a client that is not on this node reaches a cluster IP here without masquerading; with --cluster-cidr (detectLocal), "+
			"or masqueradeAll, its connections are masqueraded")
	case masqueraded > hairpins || masqueraded == gets:
		a.WayBack = fmt.Sprintf("the server answers this node, which gives its answers to the client as coming from %v", c.Dst)
	default:
		a.WayBack = fmt.Sprintf("the client is on this node: answers pass here, and get to it as coming from %v", c.Dst)
	}
}

// ownAddress is what a server sees of a client without masquerading.
func ownAddress(c Connection) string {
	if c.Src.IsValid() {
		return fmt.Sprintf("%v, the client's own address", c.Src)
	}
	return "the client's own address"
}

func whyMasqueraded(m state.Masquerade, kind state.FrontendKind) string {
	switch {
	case m == state.MasqueradeNode:
		return "the node itself connects to an address for clients outside"
	case m == state.MasqueradeUnlessPod:
		return "a client that is no pod enters the cluster here, and answers must come back the same way"
	case kind == state.ClusterIP:
		return "masqueradeAll is set"
	}
	return "with externalTrafficPolicy Cluster the server may be on any node, and answers must come back through this one; Local keeps the client's address"
}

// conflicts notes the other Services that want the frontend.
func (v *view) conflicts(a *Answer, c Connection, h held) {
	nodePort := uint16(0)
	if h.frontend.Kind == state.NodePort {
		nodePort = h.frontend.Port
	}
	key := h.port.Key(h.frontend)
	var others []string
	for _, name := range v.store.Claimants(c.Dst.Addr(), nodePort) {
		if name != h.service.Name && slices.ContainsFunc(v.why(name).Lost, func(l store.Loss) bool { return l.Frontend == key }) {
			others = append(others, name.String())
		}
	}
	order := "a cluster IP goes before a load balancer IP, which goes before an externalIP"
	if nodePort != 0 {
		order = "a nodePort goes before a healthCheckNodePort"
	}
	if len(others) > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%s wanted by %s, too: %s; then the oldest Service has it", key, diagnosis.Plural("Service", others), order))
	}
}
