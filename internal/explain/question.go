package explain

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/spelling"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// From is who connects, as a person names it.
type From struct {
	text string
	// Namespace and Name are the namespace and name of a pod, empty for other sources.
	Namespace, Name string
	addr            netip.Addr // of an address
	port            uint16     // behind the address, 0 if it is not given
}

// Addr returns the address if the client is named by one, else it is not valid.
func (f From) Addr() netip.Addr { return f.addr }

// The words of From, other than pods and addresses.
const (
	fromNode    = "node"
	fromOutside = "outside"
)

// ParseFrom reads pod/NAMESPACE/NAME, node, outside or an IP address, maybe with a port.
func ParseFrom(text string) (From, error) {
	f := From{text: text}
	if rest, ok := strings.CutPrefix(text, "pod/"); ok {
		var err error
		f.Namespace, f.Name, err = objectName(rest)
		return f, err
	}
	if text == fromNode || text == fromOutside {
		return f, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(text)
		if addr, f.port = both.Addr(), both.Port(); f.port == 0 {
			addr = netip.Addr{}
		}
	}
	if err != nil || !addr.IsValid() || addr.Zone() != "" {
		return f, fmt.Errorf("FROM: %q is not pod/NAMESPACE/NAME, node, outside or an IP address, maybe with a port%s", text, meantFrom(text))
	}
	f.addr = addr.Unmap()
	return f, nil
}

// objectName reads NAMESPACE/NAME, or NAME in the default namespace.
func objectName(text string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		namespace, name = "default", text
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q is not NAMESPACE/NAME", text)
	}
	return namespace, name, nil
}

func parseProtocol(text string) (state.Protocol, error) {
	for _, p := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
		if strings.EqualFold(p.String(), text) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("%q is none of tcp, udp and sctp: Services have ports of TCP, UDP and SCTP; "+
		"for ping, ask about one of them: the answer says whether the node answers echo requests to its address", text)
}

// meantFrom suggests which client is probably meant.
func meantFrom(text string) string {
	like := spelling.Closest(text, []string{fromNode, fromOutside})
	kind, rest, ok := strings.Cut(text, "/")
	switch {
	case ok && (kind == "pods" || kind == "po"):
		like = "pod/" + rest
	case ok && isLabel(kind) && isLabel(rest):
		like = "pod/" + text
	}
	if like == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", like)
}

// maxAnswers is how many ports one question is answered for: each answer costs a look at the whole Service, and Services may have thousands.
const maxAnswers = 32

// Ask answers a question. For a Service without a port, it answers once for each port, or only for the first ports if
// there are too many. The error reports that an object in the question does not exist.
func (x *Explainer) Ask(ctx context.Context, from From, to To) ([]*Answer, error) {
	v := x.view()
	who, err := v.client(from)
	if err != nil {
		return nil, err
	}
	if to.addr.IsValid() {
		return []*Answer{v.answer(who, to.addr, to.protocol, fmt.Sprintf("%v/%v", to.addr, to.protocol))}, nil
	}
	o, note, err := v.named(to, v.namespaceOf(from))
	if err != nil {
		return nil, err
	}
	answers, err := v.answersFor(ctx, who, o, to)
	if err == nil && note != "" {
		for _, a := range answers {
			a.Notes = append([]string{note}, a.Notes...)
		}
	}
	return answers, err
}

// answersFor answers for each port of a Service that a question is about.
func (v *view) answersFor(ctx context.Context, who *asker, o *model.Service, to To) ([]*Answer, error) {
	ports, err := portsOf(o, to)
	if err != nil {
		return nil, err
	}
	if len(ports) == 0 || len(o.ClusterIPs) == 0 {
		return []*Answer{v.unrouted(who, o)}, nil
	}
	var answers []*Answer
	for _, p := range ports[:min(len(ports), maxAnswers)] {
		if err := ctx.Err(); err != nil {
			return nil, err // the caller no longer waits for it
		}
		dst, ok := v.destination(who, o, &p)
		if !ok {
			return []*Answer{v.wrongFamily(who, o)}, nil
		}
		text := fmt.Sprintf("Service %v", o.Name)
		if p.Name != "" {
			text += ", port " + p.Name
		}
		a := v.answer(who, dst, p.Protocol, fmt.Sprintf("%s: %v/%v", text, dst, p.Protocol))
		if a.Service != "" && a.Service != o.Name.String() {
			v.heldByOther(a, o, Connection{Dst: dst, Protocol: p.Protocol})
		}
		v.noteOthers(a, who, o, &p)
		answers = append(answers, a)
	}
	if more := len(ports) - maxAnswers; more > 0 {
		last := answers[maxAnswers-1]
		last.Notes = append(last.Notes, fmt.Sprintf("Service %v has %s: ask for one of them, as svc/%v:PORT", o.Name, diagnosis.Count(more, "more port"), o.Name))
	}
	return answers, nil
}

// namespaceOf returns the namespace of a client, empty if it is no known pod.
func (v *view) namespaceOf(from From) string {
	if from.addr.IsValid() {
		if pod := v.facts.At(from.addr, ""); pod != nil {
			return pod.Namespace
		}
	}
	return from.Namespace
}

// named returns the Service that a destination names, and a note if it is not the one that it names first.
func (v *view) named(to To, namespace string) (o *model.Service, note string, err error) {
	names := to.services(namespace)
	for i, name := range names {
		if o := v.object(name); o != nil {
			if i > 0 {
				note = fmt.Sprintf("%s/%s is read as NAME/NAMESPACE: there is no Service %v", name.Name, name.Namespace, names[0])
			}
			return o, note, nil
		}
	}
	return nil, "", v.noService(names[0])
}

// heldByOther makes an answer about the Service of the question, where another Service gets the connection.
func (v *view) heldByOther(a *Answer, o *model.Service, c Connection) {
	because, remedy := v.whyNot(o.Name, c)
	if because == "" {
		return
	}
	fate := fmt.Sprintf("connections to %v go by Service %s: %s, %s", c.Dst, a.Service, a.Verdict, a.Because)
	*a = Answer{From: a.From, To: a.To, Node: a.Node, Client: a.Client, Verdict: NotServed, Because: because, Remedy: remedy, Service: o.Name.String(),
		Notes: append([]string{fate}, a.Notes...)}
	v.findings(a, v.why(o.Name))
}

// asker is who connects, with all its addresses.
type asker struct {
	text  string
	addrs []netip.Addr // none if they are not known
	port  uint16       // 0 if it is not known
	class func(netip.Addr) (Class, string)
	// inside is set for pods and this node, which connect to cluster IPs.
	inside bool
}

// addrIn returns an address of a family. Without any known, it is not valid, and in all families.
func (w *asker) addrIn(family state.Family) (netip.Addr, bool) {
	if len(w.addrs) == 0 {
		return netip.Addr{}, true
	}
	i := slices.IndexFunc(w.addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == family })
	if i < 0 {
		return netip.Addr{}, false
	}
	return w.addrs[i], true
}

// client finds out who connects.
func (v *view) client(from From) (*asker, error) {
	switch {
	case from.Name != "":
		return v.pod(from)
	case from.text == fromNode:
		return &asker{text: "node " + v.node.Name, addrs: v.node.Addresses, inside: true, class: func(netip.Addr) (Class, string) {
			return Node, "its own processes and the pods with hostNetwork"
		}}, nil
	case from.text == fromOutside:
		return &asker{text: "outside", class: func(netip.Addr) (Class, string) {
			return Outside, "a client that is neither a pod of the cluster nor this node"
		}}, nil
	}
	class, _ := v.classify(from.addr, false)
	pod := v.facts.At(from.addr, "")
	w := &asker{text: from.addr.String(), addrs: []netip.Addr{from.addr}, port: from.port, inside: class != Outside || pod != nil}
	if from.port != 0 {
		w.text = netip.AddrPortFrom(from.addr, from.port).String()
	}
	w.class = func(a netip.Addr) (Class, string) { return v.classify(a, pod != nil && pod.Node == v.node.Name) }
	if pod != nil {
		w.text += " (pod " + pod.Ref() + ")"
	}
	return w, nil
}

func (v *view) pod(from From) (*asker, error) {
	p := v.facts.Pod(from.Namespace, from.Name)
	switch {
	case p == nil:
		return nil, v.noPod(from)
	case len(p.Addrs) == 0:
		return nil, fmt.Errorf("pod %s has no address yet (status.podIPs): it does not run; kubectl describe pod says why", p.Ref())
	case p.Node != "" && p.Node != v.node.Name:
		return nil, fmt.Errorf("pod %s runs on node %s, whose service proxy handles its connections: ask there, with --node %s", p.Ref(), p.Node, p.Node)
	}
	return &asker{text: "pod " + p.Ref(), addrs: p.Addrs, inside: true, class: func(a netip.Addr) (Class, string) {
		return v.classify(a, !p.HostNetwork)
	}}, nil
}

// classify returns the class of a client on this node. podHere is set for a pod of this node with an interface of its own.
func (v *view) classify(addr netip.Addr, podHere bool) (Class, string) {
	d := state.LocalDetector{}
	if v.node.LocalDetector != nil {
		d = *v.node.LocalDetector
	}
	switch {
	case admits(d.ClusterCIDRs, addr):
		return Pod, fmt.Sprintf("its address is in the range of pods (%v)", d)
	case len(d.ClusterCIDRs) > 0:
	case d.NodeCIDR && admits(v.node.PodCIDRs, addr):
		return Pod, fmt.Sprintf("its address is in the range of this node's pods (%s)", join(v.node.PodCIDRs, ", "))
	case !d.NodeCIDR && d.Enabled() && podHere:
		return Pod, fmt.Sprintf("it comes in by an interface of pods (%v)", d)
	}
	switch {
	case slices.Contains(v.local, addr):
		return Node, "its address is one of this node's"
	case !d.Detects(state.FamilyOf(addr)):
		return Outside, "this node does not recognize pods (no --cluster-cidr or detectLocal): all but itself count as outside"
	}
	return Outside, fmt.Sprintf("its address is in no range of pods that this node knows (%v), and none of the node's", d)
}

// noPod is the error for a pod that is not known.
func (v *view) noPod(from From) error {
	var names []string
	if v.facts != nil {
		for i := range v.facts.Pods {
			names = append(names, v.facts.Pods[i].Ref())
		}
	}
	name := from.Namespace + "/" + from.Name
	return fmt.Errorf("there is no pod %s; %s", name, cmp.Or(near(name, names), "give its IP address instead, or add its Pod to the source"))
}

// noService is the error for a Service that is not known.
func (v *view) noService(name state.ServiceName) error {
	var names []string
	for _, n := range v.store.ServiceNames() {
		names = append(names, n.String())
	}
	elsewhere := "no Service is known"
	if len(names) > 0 {
		elsewhere = fmt.Sprintf("namespace %s has none, and others have %d", name.Namespace, len(names))
	}
	return fmt.Errorf("there is no Service %v; %s", name, cmp.Or(near(name.String(), names), elsewhere))
}

// near suggests what may be meant by NAMESPACE/NAME: the same name elsewhere, the name that is spelled like it, else names in the same
// namespace. It is empty if there are none.
func near(name string, names []string) string {
	namespace, own, _ := strings.Cut(name, "/")
	var same, nearby, namespaces []string
	for _, n := range names {
		ns, other, _ := strings.Cut(n, "/")
		switch {
		case other == own:
			same = append(same, n)
		case ns == namespace:
			nearby = append(nearby, n)
		}
		namespaces = append(namespaces, ns)
	}
	if len(same) > 0 {
		return "there is " + diagnosis.Some(same)
	}
	if like := spelling.Closest(name, nearby); like != "" {
		return "did you mean " + like + "?"
	}
	if len(nearby) > 0 {
		return "there is " + diagnosis.Some(nearby)
	}
	slices.Sort(namespaces)
	if like := spelling.Closest(namespace, slices.Compact(namespaces)); like != "" {
		return "did you mean namespace " + like + "?"
	}
	return ""
}

// portsOf returns the ports of a Service that a question is about.
func portsOf(o *model.Service, to To) ([]model.ServicePort, error) {
	if to.port == "" {
		return o.Ports, nil
	}
	number, err := strconv.ParseUint(to.port, 10, 16)
	isNumber := err == nil
	var found []model.ServicePort
	for _, p := range o.Ports {
		if (p.Name == to.port || isNumber && uint64(p.Port) == number) && (to.protocol == 0 || p.Protocol == to.protocol) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case !isNumber:
		return nil, fmt.Errorf("there is no port %q in Service %v; it has %s%s", to.port, o.Name, diagnosis.Some(namedPortTexts(o)), meantPort(to.port, o))
	}
	protocol := to.protocol
	if protocol == 0 {
		protocol = state.TCP
	}
	return []model.ServicePort{{Protocol: protocol, Port: uint16(number)}}, nil // the answer is why nothing is there
}

// meantPort suggests the port with the nearest name, if there are several.
func meantPort(name string, o *model.Service) string {
	var names []string
	for _, p := range o.Ports {
		names = append(names, p.Name)
	}
	if len(names) < 2 {
		return ""
	}
	return spelling.Meant(name, names)
}

func namedPortTexts(o *model.Service) []string {
	var texts []string
	for _, p := range o.Ports {
		text := fmt.Sprintf("%d/%v", p.Port, p.Protocol)
		if p.Name != "" {
			text = p.Name + " (" + text + ")"
		}
		texts = append(texts, text)
	}
	return texts
}

// destination returns the address that a client uses for a port. Pods and the node use the cluster IP. Others use the
// usual external address, or the cluster IP if there is none.
func (v *view) destination(who *asker, o *model.Service, p *model.ServicePort) (netip.AddrPort, bool) {
	for _, ip := range o.ClusterIPs {
		family := state.FamilyOf(ip)
		if _, ok := who.addrIn(family); !ok {
			continue
		}
		if who.inside {
			return netip.AddrPortFrom(ip, p.Port), true
		}
		return v.entrances(o, p, family, ip)[0], true
	}
	return netip.AddrPort{}, false
}

// entrances are where clients outside connect to for a port, the usual one first, and the cluster IP last.
func (v *view) entrances(o *model.Service, p *model.ServicePort, family state.Family, clusterIP netip.Addr) []netip.AddrPort {
	var list []netip.AddrPort
	add := func(addrs []netip.Addr, port uint16) {
		for _, a := range addrs {
			if state.FamilyOf(a) == family && port != 0 {
				list = append(list, netip.AddrPortFrom(a, port))
			}
		}
	}
	if o.Type == model.TypeLoadBalancer {
		add(o.LoadBalancerIPs, p.Port)
	}
	add(o.ExternalIPs, p.Port)
	if o.Type == model.TypeLoadBalancer || o.Type == model.TypeNodePort {
		addresses := state.NodePortAddresses{}
		if v.node.NodePorts != nil {
			addresses = *v.node.NodePorts
		}
		add(addresses.Select(v.local, v.node), p.NodePort)
	}
	return append(list, netip.AddrPortFrom(clusterIP, p.Port))
}

// answer explains a connection.
func (v *view) answer(who *asker, dst netip.AddrPort, protocol state.Protocol, to string) *Answer {
	src, ok := who.addrIn(state.FamilyOf(dst.Addr()))
	if !ok {
		return &Answer{From: who.text, To: to, Node: v.node.Name, Verdict: NotServed, Client: Client{Addr: who.addrs[0]},
			Because: fmt.Sprintf("the client has no %v address", state.FamilyOf(dst.Addr()))}
	}
	class, why := who.class(src)
	a := v.explain(Connection{Class: class, Src: src, Dst: dst, Protocol: protocol})
	a.From, a.To, a.Client = who.text, to, Client{Addr: src, Port: who.port, Class: class, Why: why}
	return a
}

// unrouted explains why a Service has nothing to connect to.
func (v *view) unrouted(who *asker, o *model.Service) *Answer {
	a := &Answer{From: who.text, To: fmt.Sprintf("Service %v", o.Name), Node: v.node.Name, Service: o.Name.String(), Verdict: NotServed}
	a.Client.Class, a.Client.Why = who.class(netip.Addr{})
	if len(who.addrs) > 0 {
		a.Client.Addr = who.addrs[0]
		a.Client.Class, a.Client.Why = who.class(who.addrs[0])
	}
	a.Because, a.Remedy = v.notRouted(o.Name, v.why(o.Name))
	v.findings(a, v.why(o.Name))
	return a
}

// wrongFamily explains that a client has no address of a family that the Service has.
func (v *view) wrongFamily(who *asker, o *model.Service) *Answer {
	a := v.unrouted(who, o)
	a.Because = fmt.Sprintf("the Service has only the cluster IP %s, and the client only the address %s: nothing translates between families",
		join(o.ClusterIPs, ", "), join(who.addrs, ", "))
	a.Remedy = "make the Service dual-stack (spec.ipFamilyPolicy), or the client"
	return a
}

// noteOthers notes the other addresses by which a client outside reaches a port.
func (v *view) noteOthers(a *Answer, who *asker, o *model.Service, p *model.ServicePort) {
	if who.inside || a.Frontend == nil {
		return
	}
	for _, ip := range o.ClusterIPs {
		if state.FamilyOf(ip) != state.FamilyOf(a.Frontend.Addr.Addr()) {
			continue
		}
		list := v.entrances(o, p, state.FamilyOf(ip), ip)
		if len(list) == 1 {
			a.Notes = append(a.Notes, "the Service has no address for clients outside: a cluster IP works only where the network leads it to a node; set spec.type to NodePort or LoadBalancer")
		} else if others := list[1 : len(list)-1]; len(others) > 0 {
			a.Notes = append(a.Notes, fmt.Sprintf("clients outside reach the port at %s, too", join(others, ", ")))
		}
	}
	if list := v.balancers(o.Name); len(list) > 0 && a.Frontend.Kind != state.LoadBalancer.String() {
		a.Notes = append(a.Notes, "its load balancer ("+diagnosis.Some(list)+
			") is none of the node's: by its ipMode Proxy, or because only its name is known, clients connect to it, and it connects to the nodes")
	}
}

func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}
