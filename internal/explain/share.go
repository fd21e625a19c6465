package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/state"
)

// Draw is how the dataplane chooses among its endpoints.
type Draw struct {
	// Even reports whether all endpoints are as likely. Then the rest is empty.
	Even bool `json:"even,omitempty"`
	// Slots is the number of slots, of which one is chosen. Shares are the slots of each of [Kernel.Endpoints]. Refused is the number of slots that
	// have no endpoint.
	Slots   int   `json:"slots,omitempty"`
	Shares  []int `json:"shares,omitempty"`
	Refused int   `json:"refused,omitempty"`
	// Hashed reports whether a hash chooses the slot, which is the same on all nodes. Slot is the slot of the client of the question, if it is
	// known, and Endpoint the endpoint there.
	Hashed   bool            `json:"hashed,omitempty"`
	Slot     *int            `json:"slot,omitempty"`
	Endpoint *netip.AddrPort `json:"endpoint,omitempty"`
}

// shares fills in what the weights of a route ask for.
func (a *Answer) shares(route *state.Route) {
	if route.Verdict != state.Forward || route.Even() {
		return
	}
	weights, all := route.Weights(), 0.0
	for _, w := range weights {
		all += float64(w)
	}
	of := make(map[netip.AddrPort]uint32, len(route.Endpoints))
	for i, e := range route.Endpoints {
		of[e.Addr] = weights[i]
	}
	for i := range a.Endpoints {
		if e := &a.Endpoints[i]; e.Gets {
			e.Weight = of[e.Addr]
			e.Share = float64(e.Weight) / all
			e.Text += fmt.Sprintf("; weight %d asks for %s", e.Weight, percent(e.Share))
		}
	}
	if route.Refused > 0 {
		a.RefusedShare = float64(route.Refused) / all
		a.Because += fmt.Sprintf(", or is refused (%s)", percent(a.RefusedShare))
		a.policy(refusedShare, strconv.FormatUint(uint64(route.Refused), 10), fmt.Sprintf("%s of new connections are refused", percent(a.RefusedShare)))
	}
}

// refusedShare is the name of the policy of [Answer.RefusedShare].
const refusedShare = "refused share"

// Lack takes features that the dataplane lacks for a Service out of an answer, and says so.
func (a *Answer) Lack(name state.ServiceName, missing state.Features) {
	a.Findings = diagnosis.Lacking(a.Findings, name, missing)
	if missing&state.Balances != 0 {
		a.withoutHash("it has no effect: the dataplane lacks it")
	}
	if missing&state.Weights != 0 {
		a.withoutWeights()
	}
}

// withoutHash says why connections are not hashed, if they should be.
func (a *Answer) withoutHash(why string) {
	if a.hashedBy != "" {
		a.policyOf(a.hashedBy).Text, a.hashedBy = why, ""
	}
}

// withoutWeights says that all endpoints get the same share.
func (a *Answer) withoutWeights() {
	if a.even {
		return
	}
	a.even = true
	for i := range a.Endpoints {
		if e := &a.Endpoints[i]; e.Weight > 0 {
			e.Text += ", but it gets the same share as the others"
		}
	}
	if a.RefusedShare > 0 {
		a.policyOf(refusedShare).Text += " by the weights, but the dataplane refuses none"
	}
}

func (a *Answer) policyOf(name string) *Policy {
	return &a.Policies[slices.IndexFunc(a.Policies, func(p Policy) bool { return p.Name == name })]
}

// compareShares adds the slots of the dataplane to what the weights ask for.
func (a *Answer) compareShares(k *Kernel) {
	if k.Draw == nil {
		return
	}
	if !k.Draw.Hashed {
		a.withoutHash("it has no effect now: the dataplane has no table for the Service, and draws endpoints at random")
	}
	if k.Draw.Even {
		a.withoutWeights()
		return
	}
	slots := make(map[netip.AddrPort]int, len(k.Endpoints))
	k.Draw.Refused = k.Draw.Slots
	for i, addr := range k.Endpoints {
		slots[addr] = k.Draw.Shares[i]
		k.Draw.Refused -= slots[addr]
	}
	for i := range a.Endpoints {
		if e := &a.Endpoints[i]; e.Gets && slots[e.Addr] > 0 {
			e.Slots = slots[e.Addr]
			e.Text += "; it has " + k.Draw.text(e.Slots)
		}
	}
}

// text describes a number of slots, such as "3 of 128 slots, 2.3%".
func (d *Draw) text(n int) string {
	return fmt.Sprintf("%d of %s slots, %s", n, thousands(d.Slots), percent(float64(n)/float64(d.Slots)))
}

// draw prints how the dataplane chooses among its endpoints.
func (p *printer) draw(d *Draw) {
	if d == nil || d.Even {
		return
	}
	if d.Refused > 0 {
		p.line("", d.text(d.Refused)+", have no endpoint: their connections are refused")
	}
	if !d.Hashed {
		return
	}
	text := fmt.Sprintf("a hash chooses one of %s slots, which are the same on all nodes", thousands(d.Slots))
	switch {
	case d.Endpoint != nil:
		text += fmt.Sprintf(": for this client slot %d, which is %v", *d.Slot, *d.Endpoint)
	case d.Slot != nil:
		text += fmt.Sprintf(": for this client slot %d, which has no endpoint", *d.Slot)
	}
	p.line("", text)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// thousands is a number of slots, of which there are less than a million.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
