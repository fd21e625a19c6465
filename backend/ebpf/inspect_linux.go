package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.Inspector = (*Backend)(nil)

// Inspect implements [backend.Inspector]. Hooks take a connection before its packets meet the base. The base has the same connection if
// its socket is bound to an address, or its pod is left to a service mesh. So the two must not differ.
func (b *Backend) Inspect(q backend.Query) (backend.Held, error) {
	base, ok := b.base.(backend.Inspector)
	if !ok {
		return backend.Held{}, errors.New("ebpf: the dataplane below does not read back single connections")
	}
	held, err := base.Inspect(q)
	if err != nil {
		return backend.Held{}, err
	}
	endpoints, objects, err := b.hooked(&q)
	if err != nil {
		return backend.Held{}, fmt.Errorf("ebpf: %w", err)
	}
	if len(endpoints) == 0 {
		return held, nil
	}
	held.Differences = append(held.Differences, differences(endpoints, &held)...)
	held.Verdict, held.Endpoints, held.Objects = state.Forward, endpoints, append(objects, held.Objects...)
	held.Draw = backend.Draw{} // is the base's
	return held, nil
}

// hooked reads back where hooks have a connection go, and by which objects. There are no endpoints if they leave it to the base.
func (b *Backend) hooked(q *backend.Query) (endpoints []netip.AddrPort, objects []string, err error) {
	if q.Frontend.Protocol != state.TCP || q.Outside {
		return nil, nil, nil
	}
	b.mu.Lock() // the maps of hooks that are replaced are closed without it, and afterwards
	defer b.mu.Unlock()
	if b.hooks == nil {
		return nil, nil, nil
	}
	found, objects, err := b.hooks.find(netip.AddrPortFrom(q.Dst, q.Frontend.Port), q.Node)
	if err != nil {
		return nil, nil, err
	}
	client := plan.Pods
	if q.Node {
		client = plan.Node
	}
	if found.Clients&client == 0 || client == plan.Pods && b.hooks.options.NodeOnly {
		return nil, nil, nil
	}
	slices.SortFunc(found.Endpoints, netip.AddrPort.Compare)
	return slices.Compact(found.Endpoints), objects, nil
}

// find looks up where a connection goes, as the programs do: the frontend, else a NodePort, if the address serves these to such a client.
func (h *hooks) find(dst netip.AddrPort, isNode bool) (found maps.Found, objects []string, err error) {
	family, suffix := state.FamilyOf(dst.Addr()), 4
	if family == state.IPv6 {
		suffix = 6
	}
	frontend := plan.Frontend{Addr: dst.Addr(), Port: dst.Port()}
	if dst.Addr().IsUnspecified() {
		return found, nil, nil // this host, and in the maps NodePorts
	}
	found, ok, err := h.tables.Find(family, frontend)
	if err != nil {
		return found, nil, err
	}
	key := dst.String()
	if !ok {
		var only uint32
		name := fmt.Sprintf("node_ports%d", suffix)
		err := h.programs.Maps[name].Lookup(dst.Addr().AsSlice(), &only)
		if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && only != 0 && !isNode {
			return found, nil, nil
		}
		if err != nil {
			return found, nil, fmt.Errorf("reading the NodePort addresses: %w", err)
		}
		objects = append(objects, fmt.Sprintf("%v in map %s", dst.Addr(), name))
		frontend.Addr, key = netip.Addr{}, fmt.Sprintf("NodePort %d", dst.Port())
		if found, ok, err = h.tables.Find(family, frontend); err != nil || !ok {
			return found, nil, err
		}
	}
	return found, append(objects,
		fmt.Sprintf("%s in map frontends%d", key, suffix), fmt.Sprintf("route %d in map routes", found.Route),
		fmt.Sprintf("slots from %d on in map slots%d", found.Base, suffix)), nil
}

// differences describes the differences between the hooks' endpoints and the base's rules.
func differences(hooked []netip.AddrPort, base *backend.Held) (list []string) {
	if base.Verdict != state.Forward {
		return []string{fmt.Sprintf("the hooks forward it, and by the dataplane below them it is %v", base.Verdict)}
	}
	for _, side := range []struct {
		of, in []netip.AddrPort
		text   string
	}{
		{hooked, base.Endpoints, "the hooks have %d endpoints that the dataplane below them does not have, such as %v"},
		{base.Endpoints, hooked, "the dataplane below the hooks has %d endpoints that they do not have, such as %v"},
	} {
		missing := slices.DeleteFunc(slices.Clone(side.of), func(e netip.AddrPort) bool {
			_, has := slices.BinarySearchFunc(side.in, e, netip.AddrPort.Compare)
			return has
		})
		if len(missing) > 0 {
			list = append(list, fmt.Sprintf(side.text, len(missing), missing[0]))
		}
	}
	return list
}
