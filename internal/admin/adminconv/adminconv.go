// Package adminconv converts the rows of package view into messages of the admin API, and back.
package adminconv

import (
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-net/switchyard/brain"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
)

// FromStatus returns the message of a status.
func FromStatus(s *view.Status) *adminv1.Status {
	m := &adminv1.Status{
		Program: s.Program, Version: s.Version, Node: s.Node, Mode: s.Mode, Started: fromTime(s.Started), Revision: s.Revision, Applied: s.Applied,
		LastSuccess: fromTime(s.LastSuccess), PendingSince: fromTime(s.PendingSince), Services: uint64(s.Services), Failed: uint64(s.Failed), Healthy: s.Healthy,
	}
	for _, p := range s.Problems {
		m.Problems = append(m.Problems, &adminv1.Problem{Part: p.Part, Message: p.Message, Fault: p.Fault})
	}
	if e := s.Edge; e != nil {
		m.Edge = &adminv1.Edge{Ports: uint64(e.Ports), Left: uint64(e.Left), Draining: uint64(e.Draining), HandedOver: e.HandedOver, TakenIn: e.TakenIn}
	}
	return m
}

// ToStatus returns the status of a message.
func ToStatus(m *adminv1.Status) *view.Status {
	s := &view.Status{
		Program: m.GetProgram(), Version: m.GetVersion(), Node: m.GetNode(), Mode: m.GetMode(), Started: toTime(m.GetStarted()), Revision: m.GetRevision(), Applied: m.GetApplied(),
		LastSuccess: toTime(m.GetLastSuccess()), PendingSince: toTime(m.GetPendingSince()), Services: int(m.GetServices()), Failed: int(m.GetFailed()), Healthy: m.GetHealthy(),
	}
	for _, p := range m.GetProblems() {
		s.Problems = append(s.Problems, view.Problem{Part: p.GetPart(), Message: p.GetMessage(), Fault: p.GetFault()})
	}
	if e := m.GetEdge(); e != nil {
		s.Edge = &view.Edge{Ports: int(e.GetPorts()), Left: int(e.GetLeft()), Draining: int(e.GetDraining()), HandedOver: e.GetHandedOver(), TakenIn: e.GetTakenIn()}
	}
	return s
}

func fromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func toTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// FromService returns the row of a Service.
func FromService(s *view.Service) *adminv1.Row {
	m := &adminv1.Service{
		Namespace: s.Namespace, Name: s.Name, Type: s.Type, ClusterIps: texts(s.ClusterIPs), ExternalIps: texts(s.ExternalIPs),
		Endpoints: fromEndpoints(s.Endpoints), NotRouted: string(s.NotRouted), Problems: s.Problems,
	}
	for _, f := range s.Findings {
		m.Findings = append(m.Findings, &adminv1.Finding{
			Reason: string(f.Reason), Severity: string(f.Severity), Kind: f.Object.Kind, Namespace: f.Object.Namespace, Name: f.Object.Name,
			Field: f.Field, Place: f.Place, Text: f.Text, Cause: f.Cause, Remedy: f.Remedy, Holders: f.Holders,
		})
	}
	for _, p := range s.Ports {
		m.Ports = append(m.Ports, &adminv1.Port{
			Name: p.Name, Protocol: p.Protocol, Port: uint32(p.Port), NodePort: uint32(p.NodePort), Endpoints: fromEndpoints(p.Endpoints),
		})
	}
	return &adminv1.Row{Key: s.Key(), Row: &adminv1.Row_Service{Service: m}}
}

// ToService returns the Service of a row.
func ToService(m *adminv1.Service) (*view.Service, error) {
	s := &view.Service{
		Namespace: m.GetNamespace(), Name: m.GetName(), Type: m.GetType(), Endpoints: toEndpoints(m.GetEndpoints()),
		NotRouted: brain.Reason(m.GetNotRouted()), Problems: m.GetProblems(),
	}
	for _, f := range m.GetFindings() {
		s.Findings = append(s.Findings, diagnosis.Finding{
			Reason: diagnosis.Reason(f.GetReason()), Severity: diagnosis.Severity(f.GetSeverity()), Object: diagnosis.Object{Kind: f.GetKind(), Namespace: f.GetNamespace(), Name: f.GetName()},
			Field: f.GetField(), Place: f.GetPlace(), Text: f.GetText(), Cause: f.GetCause(), Remedy: f.GetRemedy(), Holders: f.GetHolders(),
		})
	}
	for _, p := range m.GetPorts() {
		s.Ports = append(s.Ports, view.Port{
			Name: p.GetName(), Protocol: p.GetProtocol(), Port: uint16(p.GetPort()), NodePort: uint16(p.GetNodePort()), Endpoints: toEndpoints(p.GetEndpoints()),
		})
	}
	var err error
	if s.ClusterIPs, err = parsed(m.GetClusterIps(), netip.ParseAddr); err != nil {
		return nil, fmt.Errorf("cluster_ips of Service %s: %w", s.Key(), err)
	}
	if s.ExternalIPs, err = parsed(m.GetExternalIps(), netip.ParseAddr); err != nil {
		return nil, fmt.Errorf("external_ips of Service %s: %w", s.Key(), err)
	}
	return s, nil
}

func fromEndpoints(e view.Endpoints) *adminv1.Endpoints {
	m := &adminv1.Endpoints{Used: uint32(e.Used), All: uint32(e.All)}
	for reason, n := range e.Reasons {
		if m.Reasons == nil {
			m.Reasons = map[string]uint32{}
		}
		m.Reasons[string(reason)] = uint32(n)
	}
	return m
}

func toEndpoints(m *adminv1.Endpoints) view.Endpoints {
	e := view.Endpoints{Used: int(m.GetUsed()), All: int(m.GetAll())}
	for reason, n := range m.GetReasons() {
		if e.Reasons == nil {
			e.Reasons = map[brain.Reason]int{}
		}
		e.Reasons[brain.Reason(reason)] = int(n)
	}
	return e
}

// FromEndpoint returns the row of an endpoint.
func FromEndpoint(e *view.Endpoint) *adminv1.Row {
	return &adminv1.Row{Key: e.Key(), Row: &adminv1.Row_Endpoint{Endpoint: &adminv1.Endpoint{
		Namespace: e.Namespace, Service: e.Service, Port: e.Port, Protocol: e.Protocol, Address: e.Addr.String(), Node: e.Node, Slice: e.Slice, Pod: e.Pod,
		Inside: e.Inside, Outside: e.Outside, Reasons: words(e.Reasons), OutsideReasons: words(e.OutsideReasons),
		Weight: e.Weight, Share: e.Share, State: string(e.State), DrainsUntil: fromTime(e.DrainsUntil),
	}}}
}

// ToEndpoint returns the endpoint of a row.
func ToEndpoint(m *adminv1.Endpoint) (*view.Endpoint, error) {
	addr, err := netip.ParseAddrPort(m.GetAddress())
	if err != nil {
		return nil, fmt.Errorf("address of an endpoint of Service %s/%s: %w", m.GetNamespace(), m.GetService(), err)
	}
	return &view.Endpoint{
		Namespace: m.GetNamespace(), Service: m.GetService(), Port: m.GetPort(), Protocol: m.GetProtocol(), Addr: addr, Node: m.GetNode(), Slice: m.GetSlice(), Pod: m.GetPod(),
		Inside: m.GetInside(), Outside: m.GetOutside(), Reasons: reasons(m.GetReasons()), OutsideReasons: reasons(m.GetOutsideReasons()),
		Weight: m.Weight, Share: m.GetShare(), State: view.EndpointState(m.GetState()), DrainsUntil: toTime(m.GetDrainsUntil()),
	}, nil
}

// FromNode returns the row of a Node.
func FromNode(n *view.Node) *adminv1.Row {
	return &adminv1.Row{Key: n.Key(), Row: &adminv1.Row_Node{Node: &adminv1.Node{
		Name: n.Name, Zone: n.Zone, Addresses: texts(n.Addresses), PodCidrs: texts(n.PodCIDRs), Self: n.Self,
	}}}
}

// ToNode returns the Node of a row.
func ToNode(m *adminv1.Node) (*view.Node, error) {
	n := &view.Node{Name: m.GetName(), Zone: m.GetZone(), Self: m.GetSelf()}
	var err error
	if n.Addresses, err = parsed(m.GetAddresses(), netip.ParseAddr); err != nil {
		return nil, fmt.Errorf("addresses of Node %s: %w", n.Name, err)
	}
	if n.PodCIDRs, err = parsed(m.GetPodCidrs(), netip.ParsePrefix); err != nil {
		return nil, fmt.Errorf("pod_cidrs of Node %s: %w", n.Name, err)
	}
	return n, nil
}

// FromTraffic returns the message of a reading.
func FromTraffic(t *view.Traffic) *adminv1.TrafficResponse {
	m := &adminv1.TrafficResponse{At: fromTime(t.At), LeftOut: uint32(t.LeftOut)}
	if t.Elapsed > 0 {
		m.Elapsed = durationpb.New(t.Elapsed)
	}
	for i := range t.Ports {
		p := &t.Ports[i]
		m.Ports = append(m.Ports, &adminv1.PortTraffic{
			Namespace: p.Namespace, Service: p.Service, Port: p.Port, Connections: p.Connections, Rejects: p.Rejects, Drops: p.Drops,
			Endpoints: fromEndpoints(p.Endpoints),
		})
	}
	return m
}

// ToTraffic returns the reading of a message.
func ToTraffic(m *adminv1.TrafficResponse) *view.Traffic {
	t := &view.Traffic{At: toTime(m.GetAt()), Elapsed: m.GetElapsed().AsDuration(), LeftOut: int(m.GetLeftOut())}
	for _, p := range m.GetPorts() {
		t.Ports = append(t.Ports, view.PortTraffic{
			Namespace: p.GetNamespace(), Service: p.GetService(), Port: p.GetPort(),
			Counts:    view.Counts{Connections: p.GetConnections(), Rejects: p.GetRejects(), Drops: p.GetDrops()},
			Endpoints: toEndpoints(p.GetEndpoints()),
		})
	}
	return t
}

func texts[T fmt.Stringer](list []T) (texts []string) {
	for _, x := range list {
		texts = append(texts, x.String())
	}
	return texts
}

func parsed[T any](texts []string, parse func(string) (T, error)) (list []T, err error) {
	for _, text := range texts {
		x, err := parse(text)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

func words(reasons []brain.Reason) (words []string) {
	for _, r := range reasons {
		words = append(words, string(r))
	}
	return words
}

func reasons(words []string) (reasons []brain.Reason) {
	for _, w := range words {
		reasons = append(reasons, brain.Reason(w))
	}
	return reasons
}
