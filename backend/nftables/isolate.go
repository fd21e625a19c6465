package nftables

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// refused reports whether the kernel refused a batch for what is in it, so that it will do so again.
func refused(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.EINVAL, syscall.EEXIST, syscall.ENOENT, syscall.ENOTEMPTY, syscall.ERANGE, syscall.EOPNOTSUPP,
	}, func(errno error) bool { return errors.Is(err, errno) })
}

// isolate applies an update that the kernel refuses as a whole in parts, so that only the services that it is refused for are
// left as they were. These are added to failed. It takes about 2 log2(services) commits for each of them. Meanwhile, nothing that
// the kernel holds is taken away from services whose turn has not come; the last commit removes what belongs to none.
// Services that are lost are not tried.
func (b *Backend) isolate(u *state.Update, failed, lost map[state.ServiceName]error, unknown records) (total backend.Result, err error) {
	services, before := b.mirror.Records(), b.mirror.preserved
	last := before.after(u)
	last.all = false
	for name, err := range lost {
		if had := b.mirror.record(name); had != nil {
			last.services[name], last.lost[name] = had, err
			delete(services, name)
		}
	}
	maps.Copy(last.services, unknown)
	if u.Full {
		keep := map[state.ServiceName]bool{}
		for _, s := range u.Changed {
			keep[s.Name] = true
		}
		maps.DeleteFunc(services, func(name state.ServiceName, _ *state.Service) bool { return !keep[name] })
	}
	for _, name := range u.Removed {
		delete(services, name)
	}
	// If something else goes wrong meanwhile, the mirror shows a part of what was searched.
	incomplete := b.mirror.preserved.all || u.Full
	defer func() {
		if err != nil {
			b.mirror.preserved = last
			b.mirror.preserved.all = incomplete
			b.mirror.stillLost(before) // u comes again
		}
	}()
	commit := func(services records, preserved preserved) error {
		result, err := b.applyAll(desired{services: slices.Collect(maps.Values(services)), node: u.Node, preserved: preserved})
		total.Written += result.Written
		return err
	}
	try := func(group []*state.Service) error {
		next, taken := records{}, map[state.FrontendKey]bool{}
		for _, s := range group {
			addKeys(taken, s)
		}
		for name, s := range services {
			next[name] = s.Without(taken) // it is another's now, also if the service fails
		}
		for _, s := range group {
			next[s.Name] = s
		}
		err := commit(next, preserved{all: true})
		if err == nil {
			services = next
		}
		return err
	}
	var search func([]*state.Service) error
	search = func(group []*state.Service) error {
		err := try(group)
		switch {
		case err == nil || !refused(err):
			return err
		case len(group) == 0:
			return err // not for any of the services
		case len(group) == 1:
			s := group[0]
			failed[s.Name] = err
			switch {
			case services[s.Name] != nil:
			case before.lost[s.Name] != nil:
				last.services[s.Name], last.lost[s.Name] = before.services[s.Name], before.lost[s.Name]
			default:
				last.services[s.Name] = s // what it has is from before this process
			}
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
	return total, commit(services, last)
}
