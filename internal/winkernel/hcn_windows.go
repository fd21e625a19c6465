package winkernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"github.com/Microsoft/hnslib/hcn"
	"golang.org/x/sys/windows"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// hostNetworkService is the Host Network Service of this machine.
type hostNetworkService struct{ features plan.Features }

func dial() (hns, error) {
	f, err := hcn.GetCachedSupportedFeatures()
	switch {
	case err != nil:
		return nil, fmt.Errorf("asking HNS for its version: %w", err)
	case !f.Api.V2:
		return nil, errors.New("this version of HNS lacks its API 2: Switchyard needs Windows Server 2019 or later")
	}
	return &hostNetworkService{plan.Features{
		DSR: f.DSR, RemoteSubnet: f.RemoteSubnet, SessionAffinity: f.SessionAffinity, IPv6: f.IPv6DualStack, Modify: f.ModifyLoadbalancer,
	}}, nil
}

// schema is the version of all objects.
var schema = hcn.SchemaVersion{Major: 2, Minor: 0}

// Network implements [hns].
func (s *hostNetworkService) Network(name string) (*plan.Network, error) {
	n, err := hcn.GetNetworkByName(name)
	if err != nil {
		return nil, classify(err)
	}
	network := &plan.Network{ID: strings.ToLower(n.Id), Name: n.Name, Overlay: strings.EqualFold(string(n.Type), string(hcn.Overlay)), Features: s.features}
	for _, p := range n.Policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		var route hcn.RemoteSubnetRoutePolicySetting
		if err := json.Unmarshal(p.Settings, &route); err != nil {
			return nil, fmt.Errorf("HNS network %q: policy %s: %w", name, p.Type, err)
		}
		prefix, err := netip.ParsePrefix(route.DestinationPrefix)
		if err != nil {
			return nil, fmt.Errorf("HNS network %q: destination of policy %s: %w", name, p.Type, err)
		}
		provider, err := netip.ParseAddr(route.ProviderAddress)
		if err != nil {
			return nil, fmt.Errorf("HNS network %q: provider of policy %s: %w", name, p.Type, err)
		}
		network.Subnets = append(network.Subnets, plan.Subnet{Prefix: prefix.Masked(), Provider: provider.Unmap()})
	}
	network.HostMACs, err = hostMACs()
	return network, err
}

func hostMACs() (map[netip.Addr]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	macs := map[netip.Addr]string{}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && len(i.HardwareAddr) > 0 {
				macs[prefix.Addr().Unmap()] = strings.ReplaceAll(i.HardwareAddr.String(), ":", "-")
			}
		}
	}
	return macs, nil
}

// Endpoints implements [hns].
func (*hostNetworkService) Endpoints() ([]plan.Endpoint, error) {
	endpoints, err := hcn.ListEndpoints()
	if err != nil {
		return nil, classify(err)
	}
	list := make([]plan.Endpoint, 0, len(endpoints))
	for i := range endpoints {
		list = append(list, endpointOf(&endpoints[i]))
	}
	return list, nil
}

func endpointOf(e *hcn.HostComputeEndpoint) plan.Endpoint {
	p := plan.Endpoint{
		ID: strings.ToLower(e.Id), Name: e.Name, Network: strings.ToLower(e.HostComputeNetwork), MAC: e.MacAddress,
		Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0,
	}
	for _, c := range e.IpConfigurations {
		if addr, err := netip.ParseAddr(c.IpAddress); err == nil {
			p.Addrs = append(p.Addrs, addr.Unmap())
		}
	}
	for _, policy := range e.Policies {
		var pa hcn.ProviderAddressEndpointPolicySetting
		if policy.Type == hcn.NetworkProviderAddress && json.Unmarshal(policy.Settings, &pa) == nil {
			p.Provider, _ = netip.ParseAddr(pa.ProviderAddress) // the zero Addr stands for not known
		}
	}
	return p
}

// LoadBalancers implements [hns].
func (*hostNetworkService) LoadBalancers() ([]plan.LoadBalancer, error) {
	lbs, err := hcn.ListLoadBalancers()
	if err != nil {
		return nil, classify(err)
	}
	list := make([]plan.LoadBalancer, 0, len(lbs))
	for i := range lbs {
		list = append(list, loadBalancerOf(&lbs[i]))
	}
	return list, nil
}

func loadBalancerOf(lb *hcn.HostComputeLoadBalancer) plan.LoadBalancer {
	p := plan.LoadBalancer{ID: strings.ToLower(lb.Id), Flags: uint32(lb.Flags)}
	p.SourceVIP, _ = netip.ParseAddr(lb.SourceVIP) // the zero Addr stands for none
	for _, vip := range lb.FrontendVIPs {
		if addr, err := netip.ParseAddr(vip); err == nil {
			p.VIPs = append(p.VIPs, addr.Unmap())
		}
	}
	for _, id := range lb.HostComputeEndpoints {
		p.Endpoints = append(p.Endpoints, strings.ToLower(id))
	}
	slices.Sort(p.Endpoints)
	for _, m := range lb.PortMappings {
		p.Mappings = append(p.Mappings, plan.Mapping{
			Protocol: state.Protocol(m.Protocol), External: m.ExternalPort, Internal: m.InternalPort, Distribution: uint32(m.DistributionType), MapFlags: uint32(m.Flags),
		})
	}
	return p
}

// Do implements [hns].
func (*hostNetworkService) Do(call plan.Call) (plan.Call, error) {
	var err error
	switch call.Op {
	case plan.CreateEndpoint:
		var e *hcn.HostComputeEndpoint
		if e, err = createEndpoint(&call.Endpoint); err == nil {
			call.Endpoint = endpointOf(e)
		}
	case plan.DeleteEndpoint:
		err = (&hcn.HostComputeEndpoint{Id: call.Endpoint.ID}).Delete()
	case plan.CreateLoadBalancer, plan.ModifyLoadBalancer:
		var lb *hcn.HostComputeLoadBalancer
		if call.Op == plan.CreateLoadBalancer {
			lb, err = toHCN(&call.LoadBalancer).Create()
		} else {
			lb, err = toHCN(&call.LoadBalancer).Update(call.LoadBalancer.ID)
		}
		if err == nil {
			call.LoadBalancer = loadBalancerOf(lb)
		}
	case plan.DeleteLoadBalancer:
		err = (&hcn.HostComputeLoadBalancer{Id: call.LoadBalancer.ID}).Delete()
	}
	return call, classify(err)
}

func createEndpoint(p *plan.Endpoint) (*hcn.HostComputeEndpoint, error) {
	e := &hcn.HostComputeEndpoint{Name: p.Name, MacAddress: p.MAC, SchemaVersion: schema}
	for _, addr := range p.Addrs {
		e.IpConfigurations = append(e.IpConfigurations, hcn.IpConfig{IpAddress: addr.String()})
	}
	if p.Provider.IsValid() {
		settings, err := json.Marshal(hcn.ProviderAddressEndpointPolicySetting{ProviderAddress: p.Provider.String()})
		if err != nil {
			return nil, err
		}
		e.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	network := &hcn.HostComputeNetwork{Id: p.Network}
	if p.Remote {
		return network.CreateRemoteEndpoint(e)
	}
	return network.CreateEndpoint(e)
}

func toHCN(p *plan.LoadBalancer) *hcn.HostComputeLoadBalancer {
	lb := &hcn.HostComputeLoadBalancer{HostComputeEndpoints: p.Endpoints, Flags: hcn.LoadBalancerFlags(p.Flags), SchemaVersion: schema}
	if p.SourceVIP.IsValid() {
		lb.SourceVIP = p.SourceVIP.String()
	}
	for _, vip := range p.VIPs {
		lb.FrontendVIPs = append(lb.FrontendVIPs, vip.String())
	}
	for _, m := range p.Mappings {
		lb.PortMappings = append(lb.PortMappings, hcn.LoadBalancerPortMapping{
			Protocol: uint32(m.Protocol), InternalPort: m.Internal, ExternalPort: m.External,
			DistributionType: hcn.LoadBalancerDistribution(m.Distribution), Flags: hcn.LoadBalancerPortMappingFlags(m.MapFlags),
		})
	}
	return lb
}

// classify wraps an error of HNS in the one of package plan that a dataplane has to distinguish, if there is one.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[hcn.NetworkNotFoundError](err); ok || hcn.IsNetworkNotFoundError(err) {
		return fmt.Errorf("%w: %w", plan.ErrNoNetwork, err)
	}
	switch {
	case hcn.IsNotFoundError(err), hcn.IsElementNotFoundError(err), hcn.IsEndpointNotFoundError(err):
		return fmt.Errorf("%w: %w", plan.ErrNotFound, err)
	case hcn.IsPortAlreadyExistsError(err), hcn.CheckErrorWithCode(err, hcn.ErrorCode(windows.ERROR_ALREADY_EXISTS)): // kubernetes/kubernetes#139519
		return fmt.Errorf("%w: %w", plan.ErrExists, err)
	case hcn.IsNotImplemented(err):
		return fmt.Errorf("%w: %w", plan.ErrNotImplemented, err)
	}
	return err
}

// watchRestarts calls restarted whenever HNS has restarted, until end is called.
func watchRestarts(log *slog.Logger, restarted func()) (end func()) {
	return watchProcess(processOfHNS, log, restarted)
}

// processOfHNS returns the ID of the process of HNS, 0 if it does not run.
func processOfHNS() (uint32, error) {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return 0, fmt.Errorf("opening the service manager: %w", err)
	}
	defer windows.CloseServiceHandle(manager)
	name, err := windows.UTF16PtrFromString("hns")
	if err != nil {
		return 0, err
	}
	handle, err := windows.OpenService(manager, name, windows.SERVICE_QUERY_STATUS)
	if err != nil {
		return 0, fmt.Errorf("opening service hns: %w", err)
	}
	defer windows.CloseServiceHandle(handle)
	var status windows.SERVICE_STATUS_PROCESS
	var needed uint32
	err = windows.QueryServiceStatusEx(handle, windows.SC_STATUS_PROCESS_INFO, (*byte)(unsafe.Pointer(&status)), uint32(unsafe.Sizeof(status)), &needed)
	if err != nil {
		return 0, fmt.Errorf("asking for the status of service hns: %w", err)
	}
	if status.CurrentState != windows.SERVICE_RUNNING {
		return 0, nil
	}
	return status.ProcessId, nil
}
