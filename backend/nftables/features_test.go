//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// withFeatures returns a record with weights and all that comes with them in some of its ports. They follow from the seed and the record, so that
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
		if number("weighted")%2 == 0 {
			continue
		}
		var made [][2][]state.Endpoint // so that routes that share their endpoints still do
		for _, r := range []*state.Route{&p.Internal.Inside, &p.Internal.Outside, &p.External.Inside, &p.External.Outside} {
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
	return &dressed
}

// checkShares compares how many slots of a class each endpoint of a route has with the route's weights, and returns how many slots there are. It
// is simpler than the code: it knows no way to share slots, only bounds of a fair one.
func checkShares(r *state.Route, has map[string]int, class int) (total int, err error) {
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
	case equal && total != len(r.Endpoints):
		return 0, fmt.Errorf("%d slots for %d endpoints without weights", total, len(r.Endpoints))
	case !equal && r.Refused == 0 && total != class:
		return 0, fmt.Errorf("%d of %d slots are filled", total, class)
	case off > 0.041 && class < 256: // 2% of connections go elsewhere
		return 0, fmt.Errorf("slots %v of %d are no fair shares of %v", has, class, r)
	}
	return total, nil
}
