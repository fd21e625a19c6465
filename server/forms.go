package server

import (
	"runtime"
	"sync"
	"weak"

	"github.com/switchyard-net/switchyard/state"
)

// forms converts records for clients that do not know all features. Clients without the same features share the converted records, and so their
// encodings. The zero value is ready. Its methods may be called concurrently.
type forms struct {
	mu   sync.Mutex
	made map[weak.Pointer[state.Service]]*formsOf
}

// maxForms is the number of forms of a record that are kept. Clients of one version name the same features, so two or three sets are in use
// during an upgrade. A client that names another set with each call costs the conversion and encoding of its records. It costs the same again
// for a client whose form it displaces.
const maxForms = 4

// formsOf are the forms of one record that were asked for last.
type formsOf struct {
	list [maxForms]form
	next int // is replaced next
}

type form struct {
	missing state.Features // 0 in an unused place
	record  *state.Service
}

// of returns the form of a record without features.
func (f *forms) of(s *state.Service, accepted, missing state.Features) *state.Service {
	key := weak.Make(s)
	if converted := f.find(key, missing); converted != nil {
		return converted
	}
	converted, _ := s.For(accepted)
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.made[key]
	if all == nil {
		if f.made == nil {
			f.made = make(map[weak.Pointer[state.Service]]*formsOf)
		}
		all = new(formsOf)
		f.made[key] = all
		runtime.AddCleanup(s, f.forget, key)
	}
	if made := all.find(missing); made != nil { // another caller was faster
		return made
	}
	all.list[all.next] = form{missing, converted}
	all.next = (all.next + 1) % maxForms
	return converted
}

func (f *forms) find(key weak.Pointer[state.Service], missing state.Features) *state.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	if all := f.made[key]; all != nil {
		return all.find(missing)
	}
	return nil
}

func (f *formsOf) find(missing state.Features) *state.Service {
	for _, one := range f.list {
		if one.missing == missing {
			return one.record
		}
	}
	return nil
}

func (f *forms) forget(key weak.Pointer[state.Service]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.made, key)
}

// update returns u for a client that knows the accepted features, and how many of its records lack which feature. It is u itself if nothing changes.
func (f *forms) update(u *state.Update, accepted state.Features) (converted *state.Update, lacking map[state.Features]int) {
	if accepted == state.AllFeatures {
		return u, nil
	}
	converted = u.Convert(func(s *state.Service) *state.Service {
		missing := s.Features() &^ accepted
		if missing == 0 {
			return s
		}
		if lacking == nil {
			lacking = map[state.Features]int{}
		}
		for one := range missing.Each {
			lacking[one]++
		}
		return f.of(s, accepted, missing)
	})
	if node := u.Node.For(accepted); node != u.Node {
		if converted == u {
			converted = new(*u)
		}
		converted.Node = node
	}
	return converted, lacking
}

// instanceFor returns the life of the server for clients with the same features. Positions of other clients belong to other lives. So a client
// that comes back with other features gets the whole state, and the server keeps no record of its features.
func (s *Server) instanceFor(accepted state.Features) uint64 {
	// An odd factor keeps the lives of all sets apart. Clients without features have the server's own, as before there were features.
	return s.o.InstanceID + uint64(accepted)*0x9e3779b97f4a7c15
}
