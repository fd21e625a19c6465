package metrics

import "github.com/switchyard-net/switchyard/state"

// drops counts the service ports that drop connections because no endpoint is on this node, by family. It costs O(change) and
// remembers only services that have such ports.
type drops struct {
	services map[state.ServiceName]map[string]dropped
	total    map[string]dropped
}

// dropped are numbers of service ports.
type dropped struct{ internal, external int }

func newDrops() drops {
	return drops{services: map[state.ServiceName]map[string]dropped{}, total: map[string]dropped{}}
}

func (d *drops) apply(u *state.Update) {
	if u.Full {
		*d = newDrops()
	}
	for _, name := range u.Removed {
		d.set(name, nil)
	}
	for _, s := range u.Changed {
		d.set(s.Name, droppedBy(s))
	}
}

func (d *drops) set(name state.ServiceName, now map[string]dropped) {
	for f, n := range d.services[name] {
		t := d.total[f]
		d.total[f] = dropped{t.internal - n.internal, t.external - n.external}
	}
	for f, n := range now {
		t := d.total[f]
		d.total[f] = dropped{t.internal + n.internal, t.external + n.external}
	}
	if len(now) > 0 {
		d.services[name] = now
	} else {
		delete(d.services, name)
	}
}

// droppedBy returns nil for nearly all services. Only a policy Local without local endpoints leads to the verdict Drop.
func droppedBy(s *state.Service) map[string]dropped {
	var found map[string]dropped
	for i := range s.Ports {
		p := &s.Ports[i]
		internal := p.Internal.Inside.Verdict == state.Drop || p.Internal.Outside.Verdict == state.Drop
		external := p.External.Inside.Verdict == state.Drop || p.External.Outside.Verdict == state.Drop
		if !internal && !external {
			continue
		}
		if found == nil {
			found = map[string]dropped{}
		}
		n := found[p.Family.String()]
		if internal {
			n.internal++
		}
		if external {
			n.external++
		}
		found[p.Family.String()] = n
	}
	return found
}
