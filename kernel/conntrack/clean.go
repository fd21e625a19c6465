package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// maxWalks is how often the kernel may walk its table for the flows of one family before all flows are listed
// instead. A listing also takes one walk, but it copies out every flow that any frontend may be concerned by. With
// only UDP flows in the table it costs as much as 12 to 30 walks (docs/adr/0016-delete-flows-by-filter.md).
const maxWalks = 8

// Judge calls fn between two commits, when all that has been committed is noted, and returns its error. It returns an error
// without calling fn if it is not certain what the dataplane shows. A nil Judge calls fn at once: for a dataplane that calls Clean
// where no commit can come in between.
type Judge func(fn func() error) error

// Clean deletes the flows to pending frontends that the noted changes made wrong, because none of their endpoints answers them. It forgets
// a cleaned frontend if nothing has been noted about it since. Frontends whose cleaning fails stay pending for the next call. Clean returns
// how many flows were deleted, also with an error.
//
// Clean decides within judge which flows to delete, because the dataplane must show the noted state. While the dataplane shows an older
// state, a deleted flow comes back unchanged. A flow that begins right after a newer commit would be judged by the older state. fn deletes
// only a few flows at a time, so that a commit need not wait for long. Only deletion by a filter continues outside of judge: see Removing.
func (c *Cleaner) Clean(ctx context.Context, judge Judge) (deleted int, err error) {
	return c.cleanGroups(ctx, judge, c.groups(), inOrder[:])
}

// CleanPart cleans either UDP frontends or the others, in turn if there are both. So a change of one kind does not wait for a full look.
// more reports whether to call it again because something is pending that has not failed.
func (c *Cleaner) CleanPart(ctx context.Context, judge Judge) (deleted int, more bool, err error) {
	groups := c.groups()
	part, next := inOrder[:2], inOrder[2:]
	if c.othersNext {
		part, next = next, part
	}
	if !slices.ContainsFunc(part, func(g group) bool { return len(groups[g]) > 0 }) {
		part = next
	}
	c.othersNext = part[0].udp
	deleted, err = c.cleanGroups(ctx, judge, groups, part)
	return deleted, err == nil && len(c.pending) > 0, err
}

// groups are the pending frontends by the group that one listing covers.
func (c *Cleaner) groups() map[group][]state.FrontendKey {
	groups := map[group][]state.FrontendKey{}
	for f := range c.pending {
		g := groupOf(f)
		groups[g] = append(groups[g], f)
	}
	return groups
}

func (c *Cleaner) cleanGroups(ctx context.Context, judge Judge, groups map[group][]state.FrontendKey, order []group) (deleted int, err error) {
	before := len(c.pending)
	type round struct {
		took    time.Duration
		deleted int
	}
	rounds := map[state.Family]round{}
	var waited time.Duration
	inTurn := func(fn func() error) error {
		if judge == nil {
			return fn()
		}
		asked := time.Now()
		return judge(func() error {
			waited += time.Since(asked)
			return fn()
		})
	}
	var errs []error
	for _, g := range order {
		frontends := groups[g]
		if len(frontends) == 0 {
			continue
		}
		began := time.Now()
		waited = 0
		n, err := c.clean(ctx, inTurn, g, frontends)
		r := rounds[g.family]
		rounds[g.family] = round{r.took + time.Since(began) - waited, r.deleted + n}
		deleted += n
		errs = append(errs, err)
	}
	for family, r := range rounds {
		c.onClean(family, r.took, r.deleted)
	}
	if deleted > 0 {
		c.log.Info("deleted stale flows", "flows", deleted, "frontends", before-len(c.pending))
	}
	if len(c.pending) == 0 {
		c.pending = map[state.FrontendKey]suspect{} // an emptied map keeps the memory of all frontends, which were pending after the start
	}
	if err := errors.Join(errs...); err != nil {
		return deleted, fmt.Errorf("clean the flows of %d frontends, will retry: %w", len(c.pending), err)
	}
	return deleted, nil
}

// group is the flows that one listing covers. They are the UDP flows of a family, or its other flows that have not
// become connections.
type group struct {
	family state.Family
	udp    bool
}

// inOrder are all groups, UDP first. UDP flows go on with the wrong endpoint until they are deleted.
var inOrder = [...]group{{state.IPv4, true}, {state.IPv6, true}, {state.IPv4, false}, {state.IPv6, false}}

func groupOf(f state.FrontendKey) group { return group{f.Family, f.Protocol == state.UDP} }

// all returns the filter for the listing of several frontends.
func (g group) all() Filter {
	if g.udp {
		return Filter{Family: g.family, Protocol: state.UDP}
	}
	return Filter{Family: g.family, Unconnected: true}
}

// one returns the filter for a listing of f alone.
func (g group) one(f state.FrontendKey) Filter {
	filter := g.all()
	filter.Protocol, filter.Dst, filter.DstPort = f.Protocol, f.Addr, f.Port
	if f.LastPort != 0 {
		filter.DstPort = 0 // a filter has one port or all
	}
	return filter
}

// clean cleans the flows to frontends of one group, in the cheapest way.
func (c *Cleaner) clean(ctx context.Context, judge Judge, g group, frontends []state.FrontendKey) (deleted int, err error) {
	listed, removed := c.divide(g, frontends)
	if len(listed) > 0 {
		if deleted, err = c.list(ctx, judge, g, listed); err != nil {
			return deleted, err
		}
	}
	for i, f := range removed {
		n, ok, err := c.remove(ctx, judge, f)
		deleted += n
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			c.unfiltered = true
			n, err = c.list(ctx, judge, g, removed[i:])
			return deleted + n, err
		case err == nil && !ok:
			n, err = c.list(ctx, judge, g, []state.FrontendKey{f})
			deleted += n
		}
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// divide returns the frontends whose flows are better listed, and those whose flows are better deleted by filters. They are all listed
// unless one at most must be.
func (c *Cleaner) divide(g group, frontends []state.FrontendKey) (listed, removed []state.FrontendKey) {
	if c.unfiltered || g != (group{state.IPv4, true}) {
		return frontends, nil // the kernel compares addresses of IPv6 the wrong way round
	}
	walks := 0
	for _, f := range frontends {
		if filters, ok := c.filters(f, c.pending[f]); ok {
			removed = append(removed, f)
			walks += len(filters)
		} else {
			listed = append(listed, f)
			walks++
		}
		if len(listed) > 1 || walks > maxWalks {
			return frontends, nil
		}
	}
	return listed, removed
}

// list makes one listing for all frontends of a group, and deletes the flows that are wrong. The kernel walks its whole table for every
// listing, and one CPU handles no packets during the walk. The walk takes 7 to 13 ms with 262,144 buckets, and longer with many flows that
// are not asked for (Linux 6.18). A separate listing for each of a few frontends has less to copy. But a new connection with packets in
// several such pauses is delayed by their sum.
func (c *Cleaner) list(ctx context.Context, judge Judge, g group, frontends []state.FrontendKey) (deleted int, err error) {
	filter := g.all()
	if len(frontends) == 1 {
		filter = g.one(frontends[0])
	}
	looked := make(map[state.FrontendKey]int, len(frontends))
	for _, f := range frontends {
		looked[f] = c.pending[f].noted
	}
	var first error
	if err := c.table.Flows(filter, func(flows []Flow) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Those that a note between two calls makes wrong are deleted if they are still to come, and looked for once more in any case.
		return judge(func() error {
			var wrong []Flow
			for _, flow := range flows {
				if c.wrong(flow) {
					wrong = append(wrong, flow)
				}
			}
			if len(wrong) == 0 {
				return nil
			}
			n, err := c.table.Delete(wrong...)
			deleted, first = deleted+n, cmp.Or(first, err)
			return nil
		})
	}); err != nil {
		return deleted, err
	}
	if first != nil {
		return deleted, first
	}
	return deleted, judge(func() error {
		for f, noted := range looked {
			c.forget(f, noted)
		}
		return nil
	})
}

// forget ends that f is pending, unless something has been noted about it since.
func (c *Cleaner) forget(f state.FrontendKey, noted int) {
	if c.pending[f].noted == noted {
		delete(c.pending, f)
		c.ranges.stale = c.ranges.stale || f.LastPort != 0
	}
}

// wrong reports whether a flow goes to a pending frontend and the wrong endpoint or none answers it. Where an address and port is a
// frontend and also on a NodePort, it is the frontend's. If the frontend is gone, the flow may be one of a range.
func (c *Cleaner) wrong(flow Flow) bool {
	dst := flow.Orig.Dst
	f := state.FrontendKey{Family: flow.Family, Protocol: flow.Protocol, Addr: dst.Addr(), Port: dst.Port()}
	s, isPending := c.pending[f]
	if !isPending {
		exact := f
		f.Addr = netip.Addr{}
		s, isPending = c.pending[f]
		isPending = isPending && (c.servesNodePorts(dst.Addr()) || c.fromPeer(s, flow)) && !c.ranges.single(exact)
	}
	if !isPending {
		return c.wrongInRange(flow)
	}
	if len(s.endpoints) == 0 && c.elsewhere(f) || flow.Scheduled && c.scheduled(f) {
		return false
	}
	if flow.Protocol != state.UDP {
		return flow.Unconnected && flow.Reply.Src == dst
	}
	return !s.has(flow.Reply.Src) && !(s.gone && c.ranges.serve(flow))
}

func (c *Cleaner) servesNodePorts(addr netip.Addr) bool { return has(c.nodePorts, addr) }

// fromPeer reports whether a flow to a pending NodePort may be one that another node has handed over. This node's own flows to the NodePorts of other
// nodes are not translated here.
func (c *Cleaner) fromPeer(s suspect, flow Flow) bool {
	return s.handedOver && flow.Reply.Src != flow.Orig.Dst && has(c.peers, flow.Orig.Dst.Addr())
}

func has(sorted []netip.Addr, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(sorted, addr, netip.Addr.Compare)
	return found
}
