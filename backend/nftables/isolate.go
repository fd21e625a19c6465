package nftables

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

// refused reports whether the kernel refused a batch because of its content, and would refuse it again.
func refused(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.EINVAL, syscall.EEXIST, syscall.ENOENT, syscall.ENOTEMPTY, syscall.ERANGE, syscall.EOPNOTSUPP,
	}, func(errno error) bool { return errors.Is(err, errno) })
}

// isolate finds the services for which the kernel refuses an update, and applies the others. It takes about 2 log2(services) commits for each of
// them. During the search, services whose turn has not come keep all that the kernel holds of them. If the kernel refuses services, isolate returns a
// [backend.RefusedError]. Otherwise a last commit removes what belongs to no service. Lost services are not tried.
func (b *Backend) isolate(u *state.Update, lost map[state.ServiceName]error, unknown records) (total backend.Result, err error) {
	services, before := b.mirror.Records(), b.mirror.Preserved
	last := before.After(u)
	last.All = false
	holders := map[state.FrontendKey]state.ServiceName{}
	for _, s := range u.Changed {
		for p, f := range s.Frontends() {
			holders[p.Key(f)] = s.Name
		}
	}
	// Each comparison tries the frontends of lost services again, and needs frontends with one service each.
	before.Services = maps.Clone(before.Services)
	for name := range before.Lost {
		before.Services[name] = yielded(before.Services[name], holders)
	}
	for name, err := range lost {
		if had := b.mirror.Record(name); had != nil {
			last.Services[name], last.Lost[name] = yielded(had, holders), err
			delete(services, name)
		}
	}
	maps.Copy(last.Services, unknown)
	for _, name := range u.Gone(maps.Keys(services)) {
		delete(services, name)
	}
	// Until the last commit succeeds, the mirror shows only a part of the search. It also lacks the elements that the last commit deletes.
	incomplete := b.mirror.Preserved.All || u.Full
	defer func() {
		if err != nil {
			b.mirror.Preserved = last
			b.mirror.Preserved.All = incomplete
			b.mirror.StillLost(before) // u comes again
			b.known = false
		}
	}()
	commit := func(services records, preserved ruleset.Preserved) error {
		result, err := b.applyAll(ruleset.Desired{Services: slices.Collect(maps.Values(services)), Node: u.Node, Preserved: preserved})
		total.Written += result.Written
		return err
	}
	try := func(group []*state.Service) error {
		next, taken := records{}, map[state.FrontendKey]bool{}
		for _, s := range group {
			for p, f := range s.Frontends() {
				taken[p.Key(f)] = true
			}
		}
		for name, s := range services {
			next[name] = s.Without(taken) // others may be tried after the services that get their frontends
		}
		for _, s := range group {
			next[s.Name] = s
		}
		err := commit(next, ruleset.Preserved{All: true})
		if err == nil {
			services = next
		}
		return err
	}
	failed := map[state.ServiceName]error{}
	var search func([]*state.Service) error
	search = func(group []*state.Service) error {
		err := try(group)
		switch {
		case err == nil || !refused(err):
			return err
		case len(group) == 0:
			return err // not for any of the services
		case len(group) == 1:
			failed[group[0].Name] = err
			return nil
		}
		half := len(group) / 2
		return errors.Join(search(group[:half]), search(group[half:]))
	}
	if err := search(nil); err != nil {
		return total, err
	}
	toTry := slices.DeleteFunc(slices.Clone(u.Changed), func(s *state.Service) bool { return lost[s.Name] != nil })
	if err := search(toTry); err != nil {
		return total, err
	}
	if len(failed) > 0 {
		return total, &backend.RefusedError{Services: failed}
	}
	return total, commit(services, last)
}

// yielded returns what a service had, without the frontends that others hold.
func yielded(had *state.Service, holders map[state.FrontendKey]state.ServiceName) *state.Service {
	taken := map[state.FrontendKey]bool{}
	for p, f := range had.Frontends() {
		if holder, held := holders[p.Key(f)]; held && holder != had.Name {
			taken[p.Key(f)] = true
		}
	}
	return had.Without(taken)
}
