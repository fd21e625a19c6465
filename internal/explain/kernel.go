package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/state"
)

// Kernel is the state of a dataplane's objects for a connection, read back.
type Kernel struct {
	// Dataplane is the mode.
	Dataplane string `json:"dataplane"`
	// Unread is why nothing could be read back. Then the rest is empty.
	Unread string `json:"unread,omitempty"`
	// Verdict is the outcome by these objects, and Endpoints where the connection can go by them.
	Verdict   Verdict          `json:"verdict,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Draw is how one of Endpoints is chosen, nil if the dataplane does not say.
	Draw *Draw `json:"draw,omitempty"`
	// Silent are endpoints that the connection cannot get for now, because they do not answer.
	Silent []Silent `json:"silent,omitempty"`
	// Objects are the objects that were found, in the words of the kernel's tools.
	Objects []string `json:"objects,omitempty"`
	// Connections are some of those to the same frontend that are there already, ConnectionCount is how many there are. They are of the client if
	// its address is known, else of all.
	Connections     []Tracked `json:"connections,omitempty"`
	ConnectionCount int       `json:"connectionCount,omitempty"`
	// Differences are the differences between the kernel and the answer.
	Differences []string `json:"differences,omitempty"`
}

// Tracked is a connection that is there already.
type Tracked struct {
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
}

// Silent is an endpoint that gets no new connections from this node, because it does not answer.
type Silent struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	// Since is when it first did not answer, and Probes is how many probes it has not answered.
	Since  time.Time `json:"since"`
	Probes int       `json:"probes"`
}

// verdicts are the verdicts of frontends, by their names here.
var verdicts = map[state.Verdict]Verdict{state.Unused: NotServed, state.Forward: Forwarded, state.Reject: Rejected, state.Drop: Dropped}

// VerdictOf returns the outcome at a frontend by a route.
func VerdictOf(v state.Verdict) Verdict { return verdicts[v] }

// Key returns the name of the answer's frontend in a state, and whether the answer has a frontend.
func (a *Answer) Key() (key state.FrontendKey, ok bool) {
	f := a.Frontend
	if f == nil {
		return key, false
	}
	key = state.FrontendKey{Family: state.FamilyOf(f.Addr.Addr()), Addr: f.Addr.Addr(), Port: f.Addr.Port()}
	if f.LastPort != 0 {
		key.Port, key.LastPort = f.FirstPort, f.LastPort
	}
	key.Protocol, _ = parseProtocol(f.Protocol) // one that a record has
	if f.Kind == state.NodePort.String() {
		key.Addr = netip.Addr{}
	}
	return key, true
}

// Compare adds the state of a dataplane's objects, with the differences.
func (a *Answer) Compare(k Kernel) {
	a.Kernel = &k
	if k.Unread != "" {
		return
	}
	if f := a.Frontend; f != nil && f.LastPort != 0 {
		k.Endpoints = slices.Clone(k.Endpoints)
		for i, e := range k.Endpoints { // the endpoints of a range have no port
			k.Endpoints[i] = netip.AddrPortFrom(e.Addr(), f.Addr.Port())
		}
	}
	if k.Verdict != a.Verdict {
		k.Differences = append(k.Differences, fmt.Sprintf("the kernel's objects say %s, and the state says %s", k.Verdict, a.Verdict))
	}
	a.compareShares(&k)
	var gets []netip.AddrPort
	for _, e := range a.Endpoints {
		if e.Gets && !k.isSilent(e.Addr) {
			gets = append(gets, e.Addr)
		}
	}
	k.missing(gets, k.Endpoints, "the kernel does not have endpoint %v")
	k.missing(k.Endpoints, gets, "the kernel has endpoint %v, which gets no connections by the state")
}

// Left returns the endpoints that get no connections like this one. Open connections may stay with them.
func (a *Answer) Left() (list []netip.AddrPort) {
	for i := range a.Endpoints {
		if !a.Endpoints[i].Gets {
			list = append(list, a.Endpoints[i].Addr)
		}
	}
	return list
}

// Drain adds until when open connections stay with the endpoints that get no new ones. A deadline that is not after now has passed.
func (a *Answer) Drain(deadlines map[netip.AddrPort]time.Time, now time.Time) {
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		until, has := deadlines[e.Addr]
		if !has || e.Gets {
			continue
		}
		text := "open connections are reset, because their drain deadline has passed"
		if left := until.Sub(now).Round(time.Second); until.After(now) {
			text = fmt.Sprintf("open connections stay until %s, for %v", until.UTC().Format(time.RFC3339), max(left, time.Second))
		}
		if e.Text != "" {
			text = e.Text + "; " + text
		}
		e.Text = text
	}
}

// isSilent reports whether an endpoint is silent and left out. The last one of a route is not left out.
func (k *Kernel) isSilent(addr netip.AddrPort) bool {
	return slices.ContainsFunc(k.Silent, func(s Silent) bool { return s.Endpoint == addr }) && !slices.Contains(k.Endpoints, addr)
}

// missing adds the items of one list that the other list lacks.
func (k *Kernel) missing(of, in []netip.AddrPort, text string) {
	has := make(map[netip.AddrPort]bool, len(in))
	for _, addr := range in {
		has[addr] = true
	}
	n := 0
	for _, addr := range slices.SortedFunc(slices.Values(of), netip.AddrPort.Compare) {
		if has[addr] {
			continue
		}
		if n++; n <= maxNamed {
			k.Differences = append(k.Differences, fmt.Sprintf(text, addr))
		}
	}
	if n > maxNamed {
		k.Differences = append(k.Differences, fmt.Sprintf("and so for %d more", n-maxNamed))
	}
}

// kernel prints the state of the dataplane's objects.
func (p *printer) kernel(k *Kernel) {
	switch {
	case k == nil:
		return
	case k.Unread != "":
		p.line("kernel", fmt.Sprintf("%s: not read back: %s", k.Dataplane, k.Unread))
		return
	case len(k.Differences) == 0:
		p.line("kernel", fmt.Sprintf("%s %s: %s", p.colour(green, "✓"), k.Dataplane, outcomeText(k)))
	default:
		p.line("kernel", fmt.Sprintf("%s %s: %s", p.colour(red, "✗"), k.Dataplane, outcomeText(k)))
		for _, d := range k.Differences {
			p.line("", p.colour(red, "✗ "+d))
		}
	}
	p.draw(k.Draw)
	for i, s := range k.Silent {
		if i == maxNamed && !p.style.All {
			p.line("", "and "+diagnosis.Count(len(k.Silent)-i, "more silent endpoint"))
			break
		}
		text := "gets no new connections from this node"
		if !k.isSilent(s.Endpoint) {
			text = "stays, because the others are silent as well"
		}
		p.line("", fmt.Sprintf("%v %s: silent since %s, probed %s", s.Endpoint, text, s.Since.Format(time.TimeOnly), diagnosis.Count(s.Probes, "time")))
	}
	if p.style.All {
		for _, o := range k.Objects {
			p.line("", o)
		}
	}
	label := "tracked"
	for i, c := range k.Connections {
		if i == maxNamed && !p.style.All {
			break
		}
		p.line(label, fmt.Sprintf("%v, answered by %v", c.Client, c.Server))
		label = ""
	}
	if shown := min(len(k.Connections), maxNamed); k.ConnectionCount > shown && !p.style.All {
		p.line(label, "and "+diagnosis.Count(k.ConnectionCount-shown, "more connection"))
	}
}

func outcomeText(k *Kernel) string {
	if k.Verdict == Forwarded {
		return fmt.Sprintf("%s, to %s", k.Verdict, oneOf(len(k.Endpoints), "endpoint"))
	}
	return string(k.Verdict)
}
