//go:build linux

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/oracle"
)

// maxListed is how many addresses of one name are listed.
const maxListed = 6

// namesWithoutIP are the answers of the node-local DNS about Services without routed connections. A headless Service
// has addresses, an ExternalName Service has a name.
func namesWithoutIP(world *oracle.World) []string {
	var lines []string
	for _, svc := range slices.SortedFunc(slices.Values(world.Services), func(a, b *model.Service) int { return a.Name.Compare(b.Name) }) {
		if !svc.Headless && svc.Type != model.TypeExternalName {
			continue
		}
		var from []*model.EndpointSlice
		for _, s := range world.Slices {
			if s.Namespace == svc.Name.Namespace && s.Service == svc.Name.Name {
				from = append(from, s)
			}
		}
		n := brain.Names(svc, from, brain.MaxNames)
		if n == nil {
			continue
		}
		name := fmt.Sprintf("%s.%s.svc", svc.Name.Name, svc.Name.Namespace)
		if n.ExternalName != "" {
			lines = append(lines, fmt.Sprintf("%s  ExternalName → %s", name, n.ExternalName))
			continue
		}
		var addrs []string
		for _, g := range n.Endpoints {
			for _, e := range g.Endpoints {
				if a := e.Addr.String(); !slices.Contains(addrs, a) {
					addrs = append(addrs, a)
				}
			}
		}
		slices.Sort(addrs)
		if len(addrs) > maxListed {
			addrs = append(addrs[:maxListed], fmt.Sprintf("and %d more", len(addrs)-maxListed))
		}
		lines = append(lines, fmt.Sprintf("%s  headless → %s", name, cmp.Or(strings.Join(addrs, " "), "no address")))
	}
	return lines
}
