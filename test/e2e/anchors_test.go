//go:build linux

package e2e

import (
	"context"
	"fmt"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// anchors are slices that are always there: each service in the namespace blue has an endpoint on each node. Without them most
// of what histories make up would be refused.
func anchors(n *node, protocols []state.Protocol) []*model.EndpointSlice {
	var list []*model.EndpointSlice
	for _, service := range []string{"api", "db", "web"} {
		for _, family := range []state.Family{state.IPv4, state.IPv6} {
			for i, ports := range anchorPorts(protocols) {
				slice := &model.EndpointSlice{
					Namespace: "blue", Name: fmt.Sprintf("anchor-%s-%d-%d", service, family, i), Service: service, Family: family, Ports: ports,
				}
				for j, node := range []string{n.Node().Name, n.OtherNode().Name} {
					for _, addr := range n.Pod(anchorPods[j]).Addrs {
						if state.FamilyOf(addr) == family {
							slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: node})
						}
					}
				}
				list = append(list, slice)
			}
		}
	}
	return list
}

// anchorPorts are all ports that histories give services, on two slices: a slice has each name only once.
func anchorPorts(protocols []state.Protocol) [][]model.EndpointPort {
	unnamed := protocols[len(protocols)-1]
	if len(protocols) == 2 {
		unnamed = protocols[0]
	}
	return [][]model.EndpointPort{
		{{Name: "http", Protocol: state.TCP, Port: 8080}, {Name: "dns", Protocol: state.TCP, Port: 8081}, {Name: "", Protocol: unnamed, Port: 53}},
		{{Name: "dns", Protocol: state.UDP, Port: 53}},
	}
}

// anchor applies the anchors.
func (r *race) anchor(ctx context.Context) error {
	for _, slice := range r.anchors {
		if _, err := r.client.Set(ctx, slice); err != nil {
			return err
		}
	}
	return nil
}
