package nftables

import (
	"errors"
	"maps"
	"slices"
	"syscall"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// refused says whether the kernel refused a batch for what is in it, so that it will do so again.
func refused(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.EINVAL, syscall.EEXIST, syscall.ENOENT, syscall.ENOTEMPTY, syscall.ERANGE, syscall.EOPNOTSUPP,
	}, func(errno error) bool { return errors.Is(err, errno) })
}

// isolate applies an update that the kernel refuses as a whole in parts, so that only the services that it is refused for are
// left as they were. These are added to failed. It takes about 2 log2(services) commits for each of them.
func (b *Backend) isolate(u *state.Update, failed map[state.ServiceName]error) (backend.Result, error) {
	services := map[state.ServiceName]*state.Service{}
	for name, a := range b.mirror.services {
		services[name] = a.record
	}
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
	var total backend.Result
	try := func(group []*state.Service) error {
		next := maps.Clone(services)
		for _, s := range group {
			next[s.Name] = s
		}
		result, err := b.applyAll(desired{services: slices.Collect(maps.Values(next)), node: u.Node})
		if err == nil {
			services = next
			total.Written += result.Written
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
			failed[group[0].Name] = err
			return nil
		}
		half := len(group) / 2
		return errors.Join(search(group[:half]), search(group[half:]))
	}
	if err := search(nil); err != nil {
		return total, err
	}
	return total, search(u.Changed)
}
