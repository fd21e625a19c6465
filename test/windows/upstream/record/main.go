//go:build windows

// Command record plays the cases of test/windows/cases to upstream's proxier on upstream's mock of HNS. It prints the load balancers that
// the mock has after each step as JSON, with a line for each case.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	_ "unsafe" // for linkname

	"github.com/Microsoft/hnslib/hcn"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/winkernel"
	fakehcn "k8s.io/kubernetes/pkg/proxy/winkernel/testing"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/windows/cases"
)

// Unexported helpers of upstream's own tests.
//
//go:linkname newProxier k8s.io/kubernetes/pkg/proxy/winkernel.newProxierInternal
func newProxier(family v1.IPFamily, nodeName string, nodeIP net.IP, health healthcheck.ServiceHealthServer, healthz *healthcheck.ProxyHealthServer, healthzPort int,
	service winkernel.HcnService, macs winkernel.HostMacProvider, c config.KubeProxyWinkernelConfiguration, wait bool) (*winkernel.Proxier, error)

//go:linkname setInitialized k8s.io/kubernetes/pkg/proxy/winkernel.(*Proxier).setInitialized
func setInitialized(p *winkernel.Proxier, value bool)

const mac = "00-15-5d-10-00-01"

type macs struct{}

func (macs) GetHostMac(net.IP) string { return mac }

// mock is upstream's, with session affinity, and changes in place if modify is set. It lists each endpoint once: upstream's lists those
// twice that it has created, and the proxier takes the second one for a duplicate.
type mock struct {
	*fakehcn.HcnMock
	modify bool
}

func (m mock) GetSupportedFeatures() hcn.SupportedFeatures {
	f := m.HcnMock.GetSupportedFeatures()
	f.SessionAffinity, f.ModifyLoadbalancer = true, m.modify
	return f
}

func (m mock) ListEndpoints() ([]hcn.HostComputeEndpoint, error) {
	return once(m.HcnMock.ListEndpoints())
}

func (m mock) ListEndpointsOfNetwork(id string) ([]hcn.HostComputeEndpoint, error) {
	return once(m.HcnMock.ListEndpointsOfNetwork(id))
}

func once(list []hcn.HostComputeEndpoint, err error) ([]hcn.HostComputeEndpoint, error) {
	var unique []hcn.HostComputeEndpoint
	for _, e := range list {
		if !slices.ContainsFunc(unique, func(o hcn.HostComputeEndpoint) bool { return o.Id == e.Id }) {
			unique = append(unique, e)
		}
	}
	return unique, err
}

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	for _, c := range cases.All() {
		recorded, err := play(&c)
		if err == nil {
			err = out.Encode(recorded)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
			os.Exit(1)
		}
	}
}

func play(h *cases.Case) (*cases.Recorded, error) {
	network := &hcn.HostComputeNetwork{Id: "NETWORK", Name: cases.Network, Type: "L2Bridge"}
	if h.Overlay {
		network.Type = "Overlay"
	}
	for _, pod := range cases.Pods() {
		if pod.Node.String() == cases.NodeAddr || !h.Overlay {
			continue
		}
		settings, err := json.Marshal(hcn.RemoteSubnetRoutePolicySetting{
			DestinationPrefix: pod.Addr.String() + "/32", IsolationId: 4096, ProviderAddress: pod.Node.String(), DistributedRouterMacAddress: mac,
		})
		if err != nil {
			return nil, err
		}
		network.Policies = append(network.Policies, hcn.NetworkPolicy{Type: hcn.RemoteSubnetRoute, Settings: settings})
	}
	m := mock{fakehcn.NewHcnMock(network), h.Modify}
	for _, pod := range cases.Pods() {
		if pod.Node.String() == cases.NodeAddr {
			m.PopulateQueriedEndpoints("local-"+pod.Addr.String(), network.Id, pod.Addr.String(), mac, 24)
		}
	}
	m.PopulateQueriedEndpoints(cases.Root, network.Id, cases.RootAddr, mac, 24)
	c := config.KubeProxyWinkernelConfiguration{
		NetworkName: cases.Network, SourceVip: cases.SourceVIP, EnableDSR: h.DSR, ForwardHealthCheckVip: h.HealthVIPs, RootHnsEndpointName: cases.Root,
	}
	p, err := newProxier(v1.IPv4Protocol, cases.Node, net.ParseIP(cases.NodeAddr), healthcheck.NewFakeServiceHealthServer(), nil, cases.HealthzPort, m, macs{}, c, false)
	if err != nil {
		return nil, err
	}
	p.OnServiceSynced()
	recorded := &cases.Recorded{Name: h.Name}
	f := follower{proxier: p, services: map[model.Ref]*v1.Service{}, slices: map[model.Ref]*model.EndpointSlice{}}
	for _, step := range h.Steps {
		for _, addr := range step.Made {
			m.PopulateQueriedEndpoints("local-"+addr.String(), network.Id, addr.String(), mac, 24)
		}
		m.ShouldFailDeleteLoadBalancer = step.Refused
		setInitialized(p, false) // so that nothing is done before all of the step is there
		f.step(step.Set, step.Deleted)
		p.OnEndpointSlicesSynced() // makes the changes
		p.OnEndpointSlicesSynced() // and the remaining changes, as a period later
		list, err := m.loadBalancers()
		if err != nil {
			return nil, err
		}
		recorded.Steps = append(recorded.Steps, list)
	}
	return recorded, nil
}

// follower gives a proxier the objects that upstream's informers would.
type follower struct {
	proxier  *winkernel.Proxier
	services map[model.Ref]*v1.Service
	slices   map[model.Ref]*model.EndpointSlice
}

func (f *follower) step(set []model.Object, deleted []model.Ref) {
	for _, obj := range set {
		ref := obj.Ref()
		switch obj := obj.(type) {
		case *model.Service:
			if obj.HasProxyName {
				f.remove(ref) // the informers leave it out, as they do slices below
				continue
			}
			service := apicluster.Service(obj)
			f.proxier.OnServiceUpdate(f.services[ref], service)
			f.services[ref] = service
		case *model.EndpointSlice:
			if before := f.slices[ref]; before != nil && (before.Service != obj.Service || before.Family != obj.Family) {
				f.remove(ref) // an address type never changes: it is another slice of the same name
			}
			if obj.Headless {
				f.remove(ref)
				continue
			}
			f.proxier.OnEndpointSliceUpdate(nil, apicluster.EndpointSlice(obj))
			f.slices[ref] = obj
		}
	}
	for _, ref := range deleted {
		f.remove(ref)
	}
}

func (f *follower) remove(ref model.Ref) {
	if service := f.services[ref]; service != nil {
		f.proxier.OnServiceDelete(service)
		delete(f.services, ref)
	}
	if slice := f.slices[ref]; slice != nil {
		f.proxier.OnEndpointSliceDelete(apicluster.EndpointSlice(slice))
		delete(f.slices, ref)
	}
}

func (m mock) loadBalancers() ([]cases.LoadBalancer, error) {
	list, err := m.ListLoadBalancers()
	if err != nil {
		return nil, err
	}
	var all []cases.LoadBalancer
	for _, o := range list {
		p := o.PortMappings[0]
		lb := cases.LoadBalancer{
			Protocol: state.TCP, Port: p.ExternalPort, TargetPort: p.InternalPort, SourceVIP: o.SourceVIP, DSR: o.Flags&hcn.LoadBalancerFlagsDSR != 0,
			External: p.Flags&winkernel.LoadBalancerPortMappingFlagsVipExternalIP != 0, LocalRouted: p.Flags&hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP != 0,
			Affinity: p.DistributionType == hcn.LoadBalancerDistributionSourceIP,
		}
		if p.Protocol == 17 {
			lb.Protocol = state.UDP
		}
		if len(o.FrontendVIPs) > 0 {
			lb.VIP = o.FrontendVIPs[0]
		}
		for _, id := range o.HostComputeEndpoints {
			e, err := m.GetEndpointByID(id)
			if err != nil {
				lb.Endpoints = append(lb.Endpoints, "gone")
				continue
			}
			lb.Endpoints = append(lb.Endpoints, e.IpConfigurations[0].IpAddress)
		}
		slices.Sort(lb.Endpoints)
		all = append(all, lb)
	}
	slices.SortFunc(all, func(a, b cases.LoadBalancer) int {
		return slices.Compare([]string{a.Frontend()}, []string{b.Frontend()})
	})
	return all, nil
}
