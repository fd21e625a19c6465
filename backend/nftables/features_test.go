//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// withFeatures returns a record with weights, all that comes with them, deadlines, and addresses that answer echo requests in some of its ports. They follow from the seed and the record, so that
// the same record has the same ones. A route changes its weights when it changes its endpoints. Seed 0 is for none.
func withFeatures(s *state.Service, seed uint64) *state.Service {
	if seed == 0 {
		return s
	}
	dressed := *s
	dressed.Ports = slices.Clone(s.Ports)
	for i := range dressed.Ports {
		p := &dressed.Ports[i]
		number := func(about ...any) uint64 {
			h := fnv.New64a()
			fmt.Fprint(h, seed, s.Name, p.Name, p.Family, about)
			return binary.BigEndian.Uint64(h.Sum(nil)) >> 8
		}
		if number("hashed", len(p.Internal.Inside.Endpoints)/4)%2 == 0 {
			p.Balance = state.Balance(1 + number("by")%3)
		}
		if number("ping", len(p.Internal.Inside.Endpoints)/8)%2 == 0 {
			p.Frontends = slices.Clone(p.Frontends)
			for j := range p.Frontends {
				p.Frontends[j].Ping = p.Frontends[j].Kind != state.NodePort
			}
		}
		if p.Protocol == state.TCP && number("drained", len(p.Internal.Inside.Endpoints)/6)%2 == 0 {
			p.DrainSeconds = uint32(3600 + number("deadline")%3600)
		}
		if number("weighted")%2 == 0 {
			continue
		}
		var made [][2][]state.Endpoint // so that routes that share their endpoints still do
		for _, r := range p.Routes() {
			was := r.Endpoints
			if len(was) == 0 {
				continue
			}
			at := slices.IndexFunc(made, func(m [2][]state.Endpoint) bool { return len(m[0]) == len(was) && &m[0][0] == &was[0] })
			if at < 0 {
				list := slices.Clone(was)
				for j, e := range list {
					list[j].Weight = uint16(1 + number(e.Addr, len(list)/2)%[]uint64{2, 7, 100, 65535}[number("range", len(list))%4])
				}
				at, made = len(made), append(made, [2][]state.Endpoint{was, list})
			}
			r.Endpoints = made[at][1]
			if number("refused", len(was))%4 == 0 {
				r.Refused = uint32(1 + number("share", len(was))%500)
			}
		}
	}
	return withRanges(&dressed, seed)
}

// withEdge returns a record with an edge for most ports that can have one. On the node are some endpoints of the route of clients inside. They follow from the seed and
// the record, as in [withFeatures].
func withEdge(s *state.Service, seed uint64) *state.Service {
	s = s.WithPorts(slices.Clone(s.Ports))
	for i := range s.Ports {
		p := &s.Ports[i]
		number := func(about ...any) uint64 {
			h := fnv.New64a()
			fmt.Fprint(h, "edge", seed, s.Name, p.Name, p.Family, about)
			return binary.BigEndian.Uint64(h.Sum(nil)) >> 8
		}
		from := &p.External.Inside
		isPlain := p.Protocol != state.SCTP && p.Affinity == 0 && p.Balance == state.Random && !p.Ejection && p.DrainSeconds == 0 && p.Frontends[0].LastPort == 0
		if !isPlain || from.Verdict == state.Unused || from.Refused > 0 || number("none", len(from.Endpoints)/5)%4 == 0 {
			continue
		}
		e := &state.Edge{Local: state.Route{Verdict: state.Drop}}
		for _, ep := range from.Endpoints {
			if number(ep.Addr)%3 > 0 {
				e.Local.Verdict, e.Local.Endpoints = state.Forward, append(e.Local.Endpoints, ep)
			}
		}
		if number("shares", len(from.Endpoints)/3)%3 > 0 {
			e.Shares = []state.EdgeShare{{Node: 1, Weight: uint32(1 + len(from.Endpoints))}}
		}
		e.Except = state.KindsOf([]state.FrontendKind{state.ExternalIP, state.LoadBalancer, state.NodePort}[number("except")%3])
		if number("all")%2 == 0 || !e.TakesOneOf(p.Frontends) {
			e.Except = 0
		}
		p.Edge = e
	}
	return s
}

// withRanges returns a record with a range in addition for each cluster IP of its first port, and endpoints of that port behind it.
func withRanges(s *state.Service, seed uint64) *state.Service {
	if len(s.Ports) == 0 {
		return s
	}
	h := fnv.New64a()
	fmt.Fprint(h, seed, s.Name, len(s.Ports[0].Internal.Inside.Endpoints)/4)
	number := h.Sum64()
	// Ranges of several services never overlap, because stores give an address and port to one of them.
	names := randcluster.ServiceNames()
	block := 65_000 / len(names)
	first := uint16(1 + block*((slices.Index(names, s.Name)+int(seed%97))%len(names)) + int(number>>8%uint64(block/2)))
	p := s.Ports[0]
	p.Frontends = slices.DeleteFunc(slices.Clone(p.Frontends), func(f state.Frontend) bool { return f.Kind != state.ClusterIP })
	taken := slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Frontends[0].Port == first })
	if number%2 == 0 || len(p.Frontends) == 0 || taken {
		return s
	}
	p.Name, p.Lingering, p.External = "range "+p.Name, nil, state.Traffic{}
	for i := range p.Frontends {
		p.Frontends[i].Port, p.Frontends[i].LastPort = first, first+1+uint16(number>>32%uint64(block/2-1))
	}
	for _, r := range p.Routes() {
		r.Endpoints = slices.Clone(r.Endpoints)
		for i := range r.Endpoints {
			r.Endpoints[i].Addr = netip.AddrPortFrom(r.Endpoints[i].Addr.Addr(), 0)
		}
		slices.SortFunc(r.Endpoints, state.Endpoint.Compare)
		r.Endpoints = slices.CompactFunc(r.Endpoints, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
	}
	s.Ports = append(s.Ports, p)
	slices.SortFunc(s.Ports, func(a, b state.Port) int { return a.Compare(&b) })
	return s
}

// checkShares compares how many slots of a class each endpoint of a route has with the route's weights, and returns how many slots there are. It
// is simpler than the code: it knows no way to share slots, only bounds of a fair one.
func checkShares(p *state.Port, r *state.Route, has map[string]int, class int) (total int, err error) {
	sum, off := float64(r.Refused), 0.0
	for _, e := range r.Endpoints {
		sum += float64(max(1, e.Weight))
		n := has[string(endpointBytes(e.Addr))]
		if n == 0 {
			return 0, fmt.Errorf("%v has no slot", e.Addr)
		}
		total += n
	}
	if len(has) != len(r.Endpoints) {
		return 0, fmt.Errorf("there are slots %v for endpoints %v", has, r.Endpoints)
	}
	equal := r.Refused == 0
	for _, e := range r.Endpoints {
		n := float64(has[string(endpointBytes(e.Addr))])
		equal = equal && e.Weight == r.Endpoints[0].Weight
		drawn := class // all slots are drawn from, if some may be refused, and filled ones otherwise
		if r.Refused == 0 {
			drawn = total
		}
		off += math.Abs(n/float64(drawn) - float64(max(1, e.Weight))/sum)
	}
	switch {
	case p.Balance == state.LeastConnections && p.Affinity == 0 && len(r.Endpoints) > 1 && len(r.Endpoints) <= 128:
		if class != 256 || off > 0.041 && len(r.Endpoints) <= 5 {
			return 0, fmt.Errorf("slots %v of %d, without connections, for %v", has, class, r)
		}
	case equal && total != len(r.Endpoints):
		return 0, fmt.Errorf("%d slots for %d endpoints without weights", total, len(r.Endpoints))
	case !equal && r.Refused == 0 && total != class:
		return 0, fmt.Errorf("%d of %d slots are filled", total, class)
	case off > 0.041 && class < 256: // 2% of connections go elsewhere
		return 0, fmt.Errorf("slots %v of %d are no fair shares of %v", has, class, r)
	}
	return total, nil
}

// isHashed reports whether connections that take a route of a port are hashed.
func isHashed(p *state.Port, r *state.Route) bool {
	return p.Affinity == 0 && (p.Balance == state.HashClient || p.Balance == state.HashConnection) && (len(r.Endpoints) > 1 || r.Refused > 0)
}

// checkHashed checks the table to which a view of a frontend leads. tables are the routes of the tables seen so far, by number.
func checkHashed(h holdings, view, frontend string, p *state.Port, r *state.Route, tables map[string]*state.Route) error {
	if _, ok := h[view+"hashed"][frontend]; !ok {
		return errors.New("it is not hashed")
	}
	size, name := 4093, "hash-"
	switch n := len(r.Endpoints); {
	case n <= 3:
		size = 251
	case n <= 10:
		size = 1021
	}
	if p.Balance == state.HashConnection {
		name = "hash-ports-"
	}
	number := string(h[view+name+strconv.Itoa(size)][frontend])
	if number == "" {
		return fmt.Errorf("it has no table of %d slots", size)
	}
	if _, refuses := h[view+"hash-refuses"][frontend]; refuses != (r.Refused > 0) {
		return fmt.Errorf("connections without a slot are refused: %v", refuses)
	}
	if other := tables[number]; other != nil && !other.Equal(r) {
		return fmt.Errorf("table %x is for %v, too", number, other)
	}
	tables[number] = r
	has, empty := map[string]int{}, 0
	for i := range size {
		if e := string(h["hash-slots"][string(binary.NativeEndian.AppendUint32([]byte(number), uint32(i)))]); e != "" {
			has[e]++
		} else {
			empty++
		}
	}
	sum := float64(r.Refused)
	for _, e := range r.Endpoints {
		sum += float64(max(1, e.Weight))
	}
	for _, e := range r.Endpoints {
		n, fair := float64(has[string(endpointBytes(e.Addr))]), float64(max(1, e.Weight))/sum*float64(size)
		if n == 0 || n > fair*1.03+2 {
			return fmt.Errorf("%v has %v slots of %d, %.1f are fair", e.Addr, n, size, fair)
		}
	}
	if len(has) != len(r.Endpoints) || empty > 0 != (r.Refused > 0) || float64(empty) > float64(r.Refused)/sum*float64(size)*1.03+2 {
		return fmt.Errorf("slots %v for %v, and %d of %d are empty", has, r, empty, size)
	}
	return nil
}
