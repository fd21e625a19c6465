// Package view has what people see of a node: rows of Services, endpoints and Nodes, and the status of its process.
//
// Rows are made when they are asked for, from the store and by the brain's reasons, one Service after the other. A
// list costs as much as its rows, and a look at the names of all Services.
package view

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Status is the status of a process. Its JSON form, and the JSON form of the rows, is stable: fields may be added.
type Status struct {
	Program string `json:"program"`
	Version string `json:"version"`
	// Node is empty if it is not known yet.
	Node string `json:"node"`
	// Mode is the dataplane, "none" if the process has none.
	Mode    string    `json:"mode"`
	Started time.Time `json:"started"`
	// Revision is the revision of the newest state, 0 if not all objects are known yet. Applied is the revision that
	// the dataplane has applied, 0 for none.
	Revision uint64 `json:"revision"`
	Applied  uint64 `json:"applied"`
	// LastSuccess is when the dataplane last showed the desired state. PendingSince is since when an update has been
	// waiting.
	LastSuccess  time.Time `json:"lastSuccess,omitzero"`
	PendingSince time.Time `json:"pendingSince,omitzero"`
	Services     int       `json:"services"`
	// Failed counts the Services that the dataplane cannot program.
	Failed int `json:"failed"`
	// Healthy reports whether the dataplane keeps up, as /livez does.
	Healthy  bool      `json:"healthy"`
	Problems []Problem `json:"problems,omitempty"`
	// Edge is how the edge in front of nftables is doing, nil if there is none.
	Edge *Edge `json:"edge,omitempty"`
}

// Edge is how the edge of a node is doing, which hands connections from outside over to other nodes.
type Edge struct {
	// Ports counts ports of Services, each in one IP family, whose new connections are handed over. Left counts ports that nftables serves for now, because
	// something is lacking.
	Ports int `json:"ports"`
	Left  int `json:"left"`
	// Draining counts frontends that keep the connections that they have, and get no new ones.
	Draining int `json:"draining"`
	// HandedOver counts packets that were handed over, and TakenIn packets from other nodes.
	HandedOver uint64 `json:"handedOver"`
	TakenIn    uint64 `json:"takenIn"`
}

// Problem is one thing that is not as it should be.
type Problem struct {
	// Part is where it is.
	Part    string `json:"part"`
	Message string `json:"message"`
	// Fault reports whether /healthz is unhealthy for it.
	Fault bool `json:"fault,omitempty"`
}

// Service is how a Service is served on the node.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Type is the type of the object, or Headless.
	Type       string       `json:"type"`
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// ExternalIPs include the addresses of load balancers.
	ExternalIPs []netip.Addr `json:"externalIPs,omitempty"`
	Ports       []Port       `json:"ports,omitempty"`
	// Endpoints are the endpoints of all ports together. One with several ports counts once: it is used if one of its ports is.
	Endpoints Endpoints `json:"endpoints"`
	// NotRouted is why nothing is routed for the Service.
	NotRouted brain.Reason `json:"notRouted,omitempty"`
	// Findings are what package diagnosis finds, the worst first. Problems are its faults and warnings as sentences, and why the dataplane cannot
	// program the Service.
	Findings []diagnosis.Finding `json:"findings,omitempty"`
	Problems []string            `json:"problems,omitempty"`
}

// Port is a port of a Service, in all families.
type Port struct {
	Name      string    `json:"name,omitempty"`
	Protocol  string    `json:"protocol"`
	Port      uint16    `json:"port"`
	NodePort  uint16    `json:"nodePort,omitempty"`
	Endpoints Endpoints `json:"endpoints"`
}

// Endpoints counts endpoints.
type Endpoints struct {
	// Used get new connections of pods and processes of this node.
	Used int `json:"used"`
	All  int `json:"all"`
	// Reasons counts why others get none. An endpoint may have several.
	Reasons map[brain.Reason]int `json:"reasons,omitempty"`
}

// Endpoint is an endpoint of a port of a Service.
type Endpoint struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port,omitempty"`
	Protocol  string         `json:"protocol"`
	Addr      netip.AddrPort `json:"address"`
	Node      string         `json:"node,omitempty"`
	Slice     string         `json:"slice"`
	// Pod is the name of the pod, empty if it is not known.
	Pod string `json:"pod,omitempty"`
	// Inside reports whether the endpoint gets new connections of pods and processes of this node. Outside reports
	// whether it gets connections of clients outside of the cluster; it is false if the port is not open to them.
	Inside  bool `json:"inside"`
	Outside bool `json:"outside"`
	// Reasons are why it gets no connections from inside, OutsideReasons why it gets none from outside.
	Reasons        []brain.Reason `json:"reasons,omitempty"`
	OutsideReasons []brain.Reason `json:"outsideReasons,omitempty"`
	// Weight is the weight that the endpoint's slice gives it, nil if no slice of the Service gives any for the port. With zone weights or a slow start,
	// it is the weight among the endpoints that get connections, and 0 for all others.
	Weight *uint32 `json:"weight,omitempty"`
	// Share is the share of new connections from inside that the weights ask for, from 0 to 1.
	Share float64       `json:"share"`
	State EndpointState `json:"state"`
	// DrainsUntil is when open connections are reset, zero if they are not, or if the dataplane does not tell. It is for the state Draining.
	DrainsUntil time.Time `json:"drainsUntil,omitzero"`
}

// EndpointState is a word for what an endpoint does on the node.
type EndpointState string

// The states.
const (
	// Active: it gets new connections.
	Active EndpointState = "active"
	// Ejected: it would get new connections, but does not answer, and others get them.
	Ejected EndpointState = "ejected"
	// Draining: it gets no new connections, and goes on with its open ones.
	Draining EndpointState = "draining"
	// Idle: it gets no new connections, for other reasons than that it goes, or its drain deadline has passed.
	Idle EndpointState = "idle"
)

// Node is a Node that the process knows: its own, if its object has been delivered.
type Node struct {
	Name      string         `json:"name"`
	Zone      string         `json:"zone,omitempty"`
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs,omitempty"`
	// Self reports whether it is the node of the process.
	Self bool `json:"self,omitempty"`
}

// Key is different for each Service.
func (s *Service) Key() string { return s.Namespace + "/" + s.Name }

// Key identifies the endpoint. Two rows have the same one only if a slice names an address twice.
func (e *Endpoint) Key() string {
	return fmt.Sprintf("%s/%s/%s/%s/%v/%s", e.Namespace, e.Service, e.Port, e.Protocol, e.Addr, e.Slice)
}

// Key is different for each Node.
func (n *Node) Key() string { return n.Name }

// maxNames and maxPattern bound what one selection costs.
const maxNames, maxPattern = 100, 253

// Selection selects rows. The zero value selects all.
type Selection struct {
	// Namespace is the namespace of Services, empty for all.
	Namespace string
	// Names are patterns of [path.Match]. A name must match one of them. None for all.
	Names []string
	// After is the key of a row: of Services, those up to it are left out. Empty for none.
	After string
	// Text, in lower case, is a part that NAMESPACE/NAME of a Service must have.
	Text string
}

// Check returns an error if a pattern is invalid.
func (s *Selection) Check() error {
	if len(s.Names) > maxNames {
		return fmt.Errorf("%d names are too many; give %d at most, or patterns", len(s.Names), maxNames)
	}
	if len(s.Text) > 2*maxPattern {
		return fmt.Errorf("a text of %d bytes is too long; names have %d at most", len(s.Text), maxPattern)
	}
	for _, pattern := range s.Names {
		if len(pattern) > maxPattern {
			return fmt.Errorf("a name of %d bytes is too long; names have %d at most", len(pattern), maxPattern)
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("name %q: %w; * stands for any characters, ? for one, [a-z] for one of several", pattern, err)
		}
	}
	return nil
}

// Includes reports whether a Service is selected, wherever the selection begins.
func (s *Selection) Includes(name state.ServiceName) bool {
	return (s.Namespace == "" || name.Namespace == s.Namespace) && s.matches(name.Name) && (s.Text == "" || strings.Contains(name.String(), s.Text))
}

func (s *Selection) matches(name string) bool {
	return len(s.Names) == 0 || slices.ContainsFunc(s.Names, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return matched && err == nil
	})
}

// View is what rows are made from.
type View struct {
	// Store has the objects, and the state of its node. Required.
	Store *store.Store
	// Failed returns why the dataplane cannot program a Service, nil if it can. It may be nil.
	Failed func(state.ServiceName) error
	// Lacks returns the features that a Service uses and the dataplane lacks. It may be nil.
	Lacks func(state.ServiceName) state.Features
	// Standing returns what the dataplane knows of the endpoints of a port of a record. left are those that no route has, if they may have a deadline. It may be nil.
	Standing func(p *state.Port, left []netip.AddrPort) Standing
	// Facts make findings plainer, and name pods. They may be nil.
	Facts *diagnosis.Facts
	// Local are the addresses of the node's interfaces, none if they are not known.
	Local []netip.Addr
}

// names yields the Services that are selected, in order.
func (v *View) names(s Selection) iter.Seq[state.ServiceName] {
	return func(yield func(state.ServiceName) bool) {
		namespace, after, _ := strings.Cut(s.After, "/")
		first := state.ServiceName{Namespace: namespace, Name: after}
		for _, name := range v.Store.ServiceNames() {
			if (s.After == "" || name.Compare(first) > 0) && s.Includes(name) && !yield(name) {
				return
			}
		}
	}
}

// Services yields the rows of Services, in order.
func (v *View) Services(s Selection) iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for name := range v.names(s) {
			if row := v.Service(name); row != nil && !yield(row) { // it may be gone by now
				return
			}
		}
	}
}

// Service returns the row of a Service, nil if there is none of that name.
func (v *View) Service(name state.ServiceName) *Service { return v.ServiceOf(v.Store.Explain(name)) }

// ServiceOf returns the row of a Service that the store has explained, nil if there is none.
func (v *View) ServiceOf(why *store.Explanation) *Service {
	o := why.Object
	if o == nil {
		return nil
	}
	row := &Service{
		Namespace: o.Name.Namespace, Name: o.Name.Name, Type: typeOf(o), ClusterIPs: o.ClusterIPs,
		ExternalIPs: slices.Concat(o.LoadBalancerIPs, o.ExternalIPs), NotRouted: why.NotRouted,
	}
	type key struct {
		name     string
		protocol state.Protocol
	}
	endpoints := make(map[key]Endpoints, len(o.Ports)) // in all families
	for i := range why.Ports {
		p := &why.Ports[i]
		e := endpoints[key{p.Name, p.Protocol}]
		e.count(p)
		endpoints[key{p.Name, p.Protocol}] = e
	}
	for _, p := range o.Ports {
		port := Port{Name: p.Name, Protocol: p.Protocol.String(), Port: p.Port, NodePort: p.NodePort, Endpoints: endpoints[key{p.Name, p.Protocol}]}
		row.Ports = append(row.Ports, port)
	}
	row.Endpoints = together(why)
	row.Findings = diagnosis.Service(why, v.Store.Snapshot().Node().Name, v.Facts, v.Local)
	if v.Lacks != nil {
		if missing := v.Lacks(o.Name); missing != 0 {
			row.Findings = diagnosis.Lacking(row.Findings, o.Name, missing)
		}
	}
	for i := range row.Findings {
		if f := &row.Findings[i]; f.Severity != diagnosis.Remark {
			row.Problems = append(row.Problems, f.String())
		}
	}
	if v.Failed != nil {
		if err := v.Failed(o.Name); err != nil {
			row.Problems = append(row.Problems, err.Error())
		}
	}
	return row
}

func typeOf(o *model.Service) string {
	switch {
	case o.Type == model.TypeExternalName:
		return "ExternalName"
	case o.Headless:
		return "Headless"
	case o.Type == model.TypeNodePort:
		return "NodePort"
	case o.Type == model.TypeLoadBalancer:
		return "LoadBalancer"
	}
	return "ClusterIP"
}

// insidePolicy is the policy of cluster IPs, by which pods and processes of the node find their endpoints.
func insidePolicy(r *brain.PortReasons) brain.Policy {
	if r.Internal == brain.PolicyUnused {
		return brain.PolicyCluster
	}
	return r.Internal
}

// insideReasons are why an endpoint of a port gets no connections from inside.
func insideReasons(p *brain.PortReasons, r *brain.EndpointReasons) []brain.Reason {
	if p.NoRoom {
		return []brain.Reason{brain.NoRoom}
	}
	return r.Out(insidePolicy(p))
}

// count adds the endpoints of a port in one family.
func (e *Endpoints) count(p *brain.PortReasons) {
	for i := range p.Endpoints {
		reasons := insideReasons(p, &p.Endpoints[i])
		e.add(len(reasons) == 0, reasons)
	}
}

// add adds one endpoint.
func (e *Endpoints) add(used bool, reasons []brain.Reason) {
	e.All++
	if used {
		e.Used++
	}
	for _, reason := range reasons {
		if e.Reasons == nil {
			e.Reasons = map[brain.Reason]int{}
		}
		e.Reasons[reason]++
	}
}

// together counts the endpoints of all ports of a Service by their addresses.
func together(why *store.Explanation) (e Endpoints) {
	if len(why.Ports) == 1 {
		e.count(&why.Ports[0]) // the usual case
		return e
	}
	all := map[netip.Addr][]brain.Reason{}
	used := map[netip.Addr]bool{}
	for i := range why.Ports {
		p := &why.Ports[i]
		for j := range p.Endpoints {
			r := &p.Endpoints[j]
			addr, reasons := r.Addr.Addr(), insideReasons(p, r)
			known := all[addr]
			used[addr] = used[addr] || len(reasons) == 0
			for _, reason := range reasons {
				if !slices.Contains(known, reason) {
					known = append(known, reason)
				}
			}
			all[addr] = known
		}
	}
	for addr, reasons := range all {
		e.add(used[addr], reasons)
	}
	return e
}

// String is the numbers with the reasons, such as "1/3 NotReady=2".
func (e Endpoints) String() string {
	texts := []string{fmt.Sprintf("%d/%d", e.Used, e.All)}
	for _, reason := range slices.Sorted(maps.Keys(e.Reasons)) {
		texts = append(texts, fmt.Sprintf("%s=%d", reason, e.Reasons[reason]))
	}
	return strings.Join(texts, " ")
}

// Endpoints yields the rows of the endpoints of Services, in the order of these, and then of ports and addresses.
func (v *View) Endpoints(s Selection) iter.Seq[*Endpoint] {
	return func(yield func(*Endpoint) bool) {
		for name := range v.names(s) {
			for row := range v.EndpointsOf(name, v.Store.Explain(name)) {
				if !yield(row) {
					return
				}
			}
		}
	}
}

// EndpointsOf yields the rows of the endpoints of a Service that a store has explained. It sorts the ports of the explanation.
func (v *View) EndpointsOf(name state.ServiceName, why *store.Explanation) iter.Seq[*Endpoint] {
	return func(yield func(*Endpoint) bool) {
		slices.SortFunc(why.Ports, func(a, b brain.PortReasons) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
		})
		for i := range why.Ports {
			p := &why.Ports[i]
			all, standing := insideWeight(p), v.standing(p, why)
			for j := range p.Endpoints {
				row := v.endpoint(name, p, &p.Endpoints[j], all)
				standing.complete(row, time.Now())
				if !yield(row) {
					return
				}
			}
		}
	}
}

// insideWeight is the sum of the weights of the endpoints that get connections from inside.
func insideWeight(p *brain.PortReasons) (sum float64) {
	for i := range p.Endpoints {
		if r := &p.Endpoints[i]; len(insideReasons(p, r)) == 0 {
			sum += weightOf(r)
		}
	}
	return sum
}

func weightOf(r *brain.EndpointReasons) float64 {
	if r.Weighted {
		return float64(r.Weight)
	}
	return 1
}

// endpoint returns the row of an endpoint. all is the sum of the weights of the endpoints that get connections from inside.
func (v *View) endpoint(name state.ServiceName, p *brain.PortReasons, r *brain.EndpointReasons, all float64) *Endpoint {
	row := &Endpoint{
		Namespace: name.Namespace, Service: name.Name, Port: p.Name, Protocol: p.Protocol.String(), Addr: r.Addr,
		Node: r.Endpoint.NodeName, Slice: r.Slice.Name, Reasons: insideReasons(p, r),
	}
	_, row.Pod, _ = strings.Cut(v.Facts.PodOf(r), "/")
	if p.External != brain.PolicyUnused {
		row.OutsideReasons = r.Out(p.External)
		row.Outside = len(row.OutsideReasons) == 0
	}
	row.Inside = len(row.Reasons) == 0
	if p.NoRoom {
		row.Outside, row.OutsideReasons = false, []brain.Reason{brain.NoRoom}
	}
	if r.Weighted {
		row.Weight = new(uint32(r.Weight))
	}
	if row.Inside {
		row.Share = weightOf(r) / all
	}
	row.State = stateOf(row, r)
	return row
}

func stateOf(row *Endpoint, r *brain.EndpointReasons) EndpointState {
	switch {
	case row.Inside || row.Outside:
		return Active
	case r.Endpoint.Serving && (r.Endpoint.Terminating && r.Unusable == "" || r.Unusable == brain.NoWeight || slices.Contains(r.Cluster, brain.NodeUnready)):
		return Draining
	}
	return Idle
}

// Nodes yields the rows of Nodes, by name.
func (v *View) Nodes(s Selection) iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		self := v.Store.Snapshot().Node().Name
		for _, n := range v.Store.Nodes() {
			if s.matches(n.Name) && !yield(&Node{Name: n.Name, Zone: n.Zone, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs, Self: n.Name == self}) {
				return
			}
		}
	}
}
