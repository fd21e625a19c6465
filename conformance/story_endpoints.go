//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// endpoints: endpoints SERVICE [NAME=]PROTO:PORT... HOST[.FROM-TO][+MARK]...
//
// It sets the service's endpoint slices, one for each family, as the endpoint slice controller would.
func (s *story) endpoints(_ *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: endpoints SERVICE [NAME=]PROTO:PORT... HOST[.FROM-TO][+MARK]…")
	}
	service := args[0]
	slices := map[state.Family]*model.EndpointSlice{}
	var set []model.Object
	for family, suffix := range map[state.Family]string{state.IPv4: "-v4", state.IPv6: "-v6"} {
		slices[family] = &model.EndpointSlice{Namespace: "default", Name: service + suffix, Service: service, Family: family}
		set = append(set, slices[family])
	}
	for _, arg := range args[1:] {
		if strings.Contains(arg, ":") {
			port, err := parseEndpointPort(arg)
			if err != nil {
				return err
			}
			for _, slice := range slices {
				slice.Ports = append(slice.Ports, port)
			}
			continue
		}
		name, marks, _ := strings.Cut(arg, "+")
		host, from, to, err := s.parseHosts(name)
		if err != nil {
			return err
		}
		for i, addr := range host.Addrs {
			if n := i%max(len(host.Addrs)/2, 1) + 1; to > 0 && (n < from || n > to) {
				continue
			}
			endpoint, err := s.endpoint(host, addr, marks)
			if err != nil {
				return err
			}
			slice := slices[state.FamilyOf(addr)]
			slice.Endpoints = append(slice.Endpoints, endpoint)
		}
	}
	return s.cluster.update(set, nil)
}

func parseEndpointPort(text string) (model.EndpointPort, error) {
	name, rest, named := strings.Cut(text, "=")
	if !named {
		name, rest = "", text
	}
	proto, port, err := parseProtoPort(rest)
	return model.EndpointPort{Name: name, Protocol: proto, Port: port}, err
}

// endpoint makes an endpoint of a host. marks are separated by +: unready, terminating (which still serves), gone (which no
// longer does), zone=NAME and node=NAME (hints).
func (s *story) endpoint(host *topology.Host, addr netip.Addr, marks string) (model.Endpoint, error) {
	node := s.cluster.lab.Node()
	if s.otherNode[host.Name] {
		node = s.cluster.lab.OtherNode()
	}
	e := model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: node.Name}
	if marks == "" {
		return e, nil
	}
	for mark := range strings.SplitSeq(marks, "+") {
		key, value, _ := strings.Cut(mark, "=")
		switch key {
		case "unready":
			e.Ready, e.Serving = false, false
		case "terminating":
			e.Ready, e.Terminating = false, true
		case "gone":
			e.Ready, e.Serving, e.Terminating = false, false, true
		case "zone":
			e.ZoneHints = append(e.ZoneHints, value)
		case "node":
			e.NodeHints = append(e.NodeHints, value)
		default:
			return e, fmt.Errorf("unknown mark %q of endpoint %s", mark, host.Name)
		}
	}
	return e, nil
}
