package node

import (
	"context"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// withdrawTime is how long a node waits at most until the cluster knows that it takes no more packets from other nodes. From then on, other nodes go on
// with new connections for hearTime at most: until they have heard of it and have programmed it.
const withdrawTime, hearTime = 3 * time.Second, time.Second

// edgeSource returns the source that tells other nodes whether this one takes part in the edge. It is nil if the source cannot, as with files: then somebody
// else writes the annotation.
func (n *Node) edgeSource() model.WithEdge {
	p := n.pipeline.Load()
	if p == nil {
		return nil // the node is being made
	}
	s, _ := p.source.(model.WithEdge)
	return s
}

// announce is [DataplaneOptions].announce.
func (n *Node) announce(port uint16) (can bool) {
	switch {
	case n.edgeSource() == nil:
		return false
	case port == 0:
		n.announcer.Withdraw()
	default:
		n.announcer.Announce(port)
	}
	return true
}

// leaveEdge tells other nodes that this one takes no more packets from them. It returns after they have had time to hear of it, or when ctx ends. It is
// called while this node still serves what they hand over. Nothing else is told until stay is called.
func (n *Node) leaveEdge(ctx context.Context) (stay func()) {
	was := n.announcer.Announced()
	n.announcer.Hold()
	if was {
		n.awaitOthers(ctx)
	}
	return n.announcer.Release
}

// awaitOthers waits until the cluster knows that this node takes no more packets, and then for hearTime, or until ctx ends.
func (n *Node) awaitOthers(ctx context.Context) {
	last, cancel := context.WithTimeout(ctx, withdrawTime)
	defer cancel()
	if err := n.announcer.Wait(last); err != nil && ctx.Err() == nil {
		n.log.Warn("other nodes do not know that this node takes no more packets from them", "error", err)
		return
	}
	select {
	case <-time.After(hearTime):
	case <-ctx.Done():
	}
}

// tellCluster tells other nodes whether this one takes part in the edge, until ctx ends. A node that ends takes no part: others hand new connections
// over to the remaining nodes, or serve them themselves.
func (n *Node) tellCluster(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		n.leaveEdge(running)
		stop()
	})
	return n.announcer.Run(running)
}
