package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// routes looks for a route to each cluster IP. The kernel looks for one before it translates a connection of this node.
func routes(ctx context.Context, n *Node) []Finding {
	if n.Services == nil {
		return info("not checked: there is no process at --socket that could name cluster IPs")
	}
	addrs, err := n.Services(ctx)
	if err != nil {
		return info("not checked: no cluster IP is known: %v", err)
	}
	if len(addrs) == 0 {
		return info("not checked: there is no Service with a cluster IP")
	}
	var lost []string
	var cause error
	for _, a := range addrs {
		if err := n.Route(a); err != nil {
			lost, cause = append(lost, a.String()), err
		}
	}
	if len(lost) == 0 {
		return fine("this node has a route to all cluster IPs that were tried (%d)", len(addrs))
	}
	return []Finding{{
		Level: Warning, Summary: fmt.Sprintf("this node has no route to %s: %s: %v", count(len(lost), "cluster IP"), listed(lost), cause),
		Meaning: "processes of this node and pods with hostNetwork cannot connect to these Services: the kernel looks for a route before it translates the address",
		Remedy: "add a default route, or a route to the range of cluster IPs: ip route add RANGE dev DEVICE, with the device that has the Node's address; " +
			"no packet uses it, because the address is translated first",
	}}
}

// Endpoint is an endpoint of a Service.
type Endpoint struct {
	Service string // NAMESPACE/NAME
	Addr    netip.AddrPort
}

const (
	// maxProbed and maxProbedOfService are how many endpoints are connected to, in all and of one Service.
	maxProbed          = 200
	maxProbedOfService = 3
	probeWorkers       = 16
)

// endpoints connects to some endpoints of each Service.
func endpoints(ctx context.Context, n *Node) []Finding {
	if n.Endpoints == nil {
		return info("not connected to: --probe connects to some endpoints of each Service")
	}
	all, err := n.Endpoints(ctx)
	if err != nil {
		return []Finding{{
			Level: Warning, Summary: fmt.Sprintf("no endpoint is known: %v", err), Meaning: "--probe has nothing to connect to",
			Remedy: "start the proxy, or name the socket of a running one with --socket",
		}}
	}
	chosen := choose(all)
	if len(chosen) == 0 {
		return info("no endpoint gets TCP connections of this node")
	}
	results := make([]error, len(chosen))
	var wg sync.WaitGroup
	next := make(chan int)
	for range probeWorkers {
		wg.Go(func() {
			for i := range next {
				results[i] = n.Connect(ctx, chosen[i].Addr)
			}
		})
	}
	for i := range chosen {
		next <- i
	}
	close(next)
	wg.Wait()
	return probeFindings(chosen, results, len(all))
}

// choose selects the endpoints to connect to, a few of each Service.
func choose(all []Endpoint) []Endpoint {
	of := map[string]int{}
	var chosen []Endpoint
	for _, e := range all {
		if of[e.Service] < maxProbedOfService && len(chosen) < maxProbed {
			of[e.Service]++
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// probeFindings has a finding for each kind of failure.
func probeFindings(chosen []Endpoint, results []error, all int) []Finding {
	var refused, silent, others []string
	for i, err := range results {
		name := fmt.Sprintf("%s %v", chosen[i].Service, chosen[i].Addr)
		switch {
		case err == nil:
		case errors.Is(err, syscall.ECONNREFUSED):
			refused = append(refused, name)
		case errors.Is(err, context.DeadlineExceeded):
			silent = append(silent, name)
		default:
			others = append(others, fmt.Sprintf("%s (%v)", name, cause(err)))
		}
	}
	var found []Finding
	add := func(names []string, what, meaning, remedy string) {
		if len(names) > 0 {
			slices.Sort(names)
			found = append(found, Finding{
				Level: Warning, Summary: fmt.Sprintf("%s of %d %s: %s", count(len(names), "endpoint"), len(chosen), what, listed(names)), Meaning: meaning, Remedy: remedy,
			})
		}
	}
	add(refused, "refused a connection", "no process listens on that port of the pod, and the readiness probe does not notice it",
		"compare the Service's targetPort with the port on which the container listens, and let the readiness probe use the same port")
	add(silent, "did not answer", "the pod is dead, or something on the way drops packets from this node to it",
		"check network policies that exclude the node, the route to the pod's node, and the firewalls of both nodes")
	add(others, "could not be connected to", "this node cannot reach the pod", "check the routes that the network plugin adds: ip route get ADDRESS")
	if found == nil {
		text := fmt.Sprintf("all %d endpoints that were tried accept connections", len(chosen))
		if all > len(chosen) {
			text += fmt.Sprintf(", of %d", all)
		}
		return fine("%s", text)
	}
	return found
}

// cause is the last part of a network error, without the addresses.
func cause(err error) string {
	text := err.Error()
	return strings.TrimSpace(text[strings.LastIndex(text, ": ")+1:])
}
