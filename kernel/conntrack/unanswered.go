package conntrack

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// DeleteUnanswered removes the translated flows of TCP to endpoints that have no answer yet. So the next packet of each counts as the first of a new flow. It
// returns about how many they were, also with an error.
//
// Where the table can, it deletes by a filter for each endpoint of IPv4, if there are few. Otherwise it lists the unanswered flows of a family once, as
// [Cleaner.Clean] does.
func DeleteUnanswered(t Table, endpoints ...netip.AddrPort) (deleted int, err error) {
	var errs []error
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		of := map[netip.AddrPort]bool{}
		for _, e := range endpoints {
			if state.FamilyOf(e.Addr()) == f {
				of[e] = true
			}
		}
		if len(of) == 0 {
			continue
		}
		n, err := deleteUnanswered(t, Filter{Family: f, Protocol: state.TCP, Unanswered: true}, of)
		deleted, errs = deleted+n, append(errs, err)
	}
	return deleted, errors.Join(errs...)
}

func deleteUnanswered(t Table, unanswered Filter, endpoints map[netip.AddrPort]bool) (deleted int, err error) {
	if len(endpoints) <= maxWalks {
		for e := range endpoints {
			filter := unanswered
			filter.From = e
			var n int
			n, err = t.DeleteAll(filter)
			if deleted += n; err != nil {
				break
			}
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return deleted, err
		}
	}
	err = t.Flows(unanswered, func(flows []Flow) error {
		n, err := t.Delete(slices.DeleteFunc(flows, func(flow Flow) bool { return !endpoints[flow.Reply.Src] })...)
		deleted += n
		return err
	})
	return deleted, err
}
