package nftables

import "github.com/switchyard-net/switchyard/state"

// staleServices are services that have failed, so that the mirror shows less, or something else, of them than the state has. Others find
// the one that holds a frontend without a look at all of them: they may be many, and for long.
type staleServices struct {
	// records are those that the mirror had when the services failed, nil if it did not know them. Since then, they can only have
	// lost frontends to other services.
	records records
	// holders are the services in whose records frontends are. The last one that failed counts: the others have lost it.
	holders map[state.FrontendKey]state.ServiceName
}

// none reports whether no service is stale.
func (l *staleServices) none() bool { return len(l.records) == 0 }

// note notes which services have failed in u. record returns what the mirror has of them.
func (l *staleServices) note(u *state.Update, failed map[state.ServiceName]error, record func(state.ServiceName) *state.Service) {
	if u.Full || l.records == nil {
		l.records, l.holders = records{}, map[state.FrontendKey]state.ServiceName{}
	}
	for _, name := range u.Removed {
		l.forget(name)
	}
	for _, s := range u.Changed {
		l.forget(s.Name)
		if failed[s.Name] == nil {
			continue
		}
		had := record(s.Name)
		l.records[s.Name] = had
		if had != nil {
			addHolder(l.holders, had)
		}
	}
}

func (l *staleServices) forget(name state.ServiceName) {
	if had := l.records[name]; had != nil {
		keys := map[state.FrontendKey]bool{}
		addKeys(keys, had)
		for k := range keys {
			if l.holders[k] == name {
				delete(l.holders, k)
			}
		}
	}
	delete(l.records, name)
}

// holding returns the services that may have some of the frontends.
func (l *staleServices) holding(frontends map[state.FrontendKey]bool) map[state.ServiceName]bool {
	names := map[state.ServiceName]bool{}
	for k := range frontends {
		if name, ok := l.holders[k]; ok {
			names[name] = true
		}
	}
	return names
}
