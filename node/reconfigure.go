package node

import (
	"context"
	"errors"
	"reflect"

	"github.com/switchyard-net/switchyard/config"
)

// request is a call of [Node.Reconfigure].
type request struct {
	config *config.Config
	done   chan error // has room for the answer
}

// Reconfigure makes the node go on with another configuration, which must be valid, and must not be modified
// afterwards. It returns when that is done; before Run is called, it waits. Only parts that the change concerns are
// touched. The contents of the kernel stay, and ports stay open. Options.Source is called only if the way to the
// cluster's objects, or this node, is another one. A dataplane of Options.Dataplane gets every configuration, also the
// same one again, for settings of its own. After an error, everything is unchanged, and the call may be repeated.
//
// Another mode replaces the dataplane while it runs, without the loss of a connection. If the new mode cannot be programmed, the
// previous one goes on.
//
// [config.Diff] names the fields that take effect only in a new node, such as logging.format. The caller must keep these fields the
// same ([config.Config.Revert]).
func (n *Node) Reconfigure(c *config.Config) error {
	r := request{c, make(chan error, 1)}
	select {
	case n.requests <- r:
		return <-r.done
	case <-n.ended:
		return errors.New("node: it has ended, and cannot be reconfigured")
	}
}

// followRequests does what Reconfigure asks for until ctx ends, one after the other.
func (n *Node) followRequests(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-n.requests:
			r.done <- n.reconfigure(r.config)
		}
	}
}

func (n *Node) reconfigure(now *config.Config) error {
	was, old := n.config.Load(), n.pipeline.Load()
	to, err := n.originOf(now)
	if err != nil {
		return err
	}
	if !now.Edge.Enabled() { // while this one still serves what others hand over
		stay := n.leaveEdge(n.group.ctx)
		defer stay()
	}
	if old.origin == to && n.sameWay(was, now) {
		err = old.adapt(n, was, now)
	} else {
		err = n.replace(was, now, to)
	}
	if err != nil {
		return err
	}
	n.config.Store(now)
	n.warnCounters(now)
	n.warnEdge(now)
	if n.o.ReplaceKubeProxy && (was.Linux.Conntrack != now.Linux.Conntrack || was.Linux.OOMScoreAdj != now.Linux.OOMScoreAdj) {
		SetUp(now, n.log)
	}
	if was.AdminSocket() != now.AdminSocket() {
		n.stopAdmin()
		n.startAdmin(now)
	}
	n.health.SetTimeout(healthTimeout(now))
	n.serveOn(now)
	return nil
}

// sameWay reports whether a pipeline can go on with another configuration, except for its origin. The pipeline of a relay cannot change
// the rules of routing, because the states of all nodes depend on them.
func (n *Node) sameWay(was, now *config.Config) bool {
	return n.o.Role != Relay || reflect.DeepEqual(BrainConfig(n.bounded(was), ""), BrainConfig(n.bounded(now), "")) && Budgets(n.bounded(was)) == Budgets(n.bounded(now))
}

// replace goes on with another pipeline.
func (n *Node) replace(was, now *config.Config, to origin) error {
	old := n.pipeline.Load()
	next, err := n.newPipeline(now, to)
	if err != nil {
		return err
	}
	if n.dataplane != nil {
		old.stopDataplane()
		if err := n.reconfigureDataplane(old, now); err != nil {
			next.close()
			old.startDataplane(n, was)
			return err
		}
	}
	old.stop()
	n.pipeline.Store(next)
	next.start(n, now)
	return nil
}
