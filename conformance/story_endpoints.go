//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// endpoints: endpoints SERVICE [NAME=]PROTO:PORT... HOST[.FROM-TO][+MARK]...
//
// It sets the service's endpoint slices, as the endpoint slice controller would: one for each family, and one more for each weight.
func (s *story) endpoints(_ *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: endpoints SERVICE [NAME=]PROTO:PORT... HOST[.FROM-TO][+MARK]…")
	}
	service := args[0]
	made, gone := map[string]*model.EndpointSlice{}, s.slices[service]
	slice := func(family state.Family, weight string) *model.EndpointSlice {
		name := service + map[state.Family]string{state.IPv4: "-v4", state.IPv6: "-v6"}[family]
		if weight != "" {
			name += "-" + weight
		}
		if made[name] == nil {
			made[name] = &model.EndpointSlice{Namespace: "default", Name: name, Service: service, Family: family, Weight: weight}
		}
		return made[name]
	}
	slice(state.IPv4, "")
	slice(state.IPv6, "")
	var ports []model.EndpointPort
	for _, arg := range args[1:] {
		if strings.Contains(arg, ":") {
			port, err := parseEndpointPort(arg)
			if err != nil {
				return err
			}
			ports = append(ports, port)
			continue
		}
		name, marks, _ := strings.Cut(arg, "+")
		marks, weight, err := cutWeight(marks)
		if err != nil {
			return fmt.Errorf("endpoint %s: %w", name, err)
		}
		servers, err := s.parseServers(name)
		if err != nil {
			return err
		}
		for _, server := range servers {
			s.weights[server], _ = strconv.ParseFloat(weight, 64)
		}
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
			of := slice(state.FamilyOf(addr), weight)
			of.Endpoints = append(of.Endpoints, endpoint)
		}
	}
	var set []model.Object
	for _, of := range made {
		of.Ports = ports
		set = append(set, of)
	}
	s.slices[service] = slices.Collect(maps.Keys(made))
	var deleted []model.Ref
	for _, name := range gone {
		if made[name] == nil {
			deleted = append(deleted, model.Ref{Kind: model.KindEndpointSlice, Namespace: "default", Name: name})
		}
	}
	return s.cluster.update(set, deleted)
}

// cutWeight takes weight=N out of marks.
func cutWeight(marks string) (rest, weight string, err error) {
	list := strings.Split(marks, "+")
	list = slices.DeleteFunc(list, func(mark string) bool {
		value, is := strings.CutPrefix(mark, "weight=")
		if is {
			weight = value
			_, err = strconv.ParseUint(value, 10, 16)
		}
		return is
	})
	return strings.Join(list, "+"), weight, err
}

// refuse: refuse SERVICE WEIGHT
//
// From now on, changes of the service are served with a share that is refused, next to the weights of its endpoints.
func (s *story) refuse(_ *testscript.TestScript, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: refuse SERVICE WEIGHT")
	}
	weight, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	s.refused = float64(weight)
	s.cluster.refuse(state.ServiceName{Namespace: "default", Name: args[0]}, uint32(weight))
	return nil
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
// longer does), in=NAME (its zone), zone=NAME and node=NAME (hints).
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
		case "in":
			e.Zone = value
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
