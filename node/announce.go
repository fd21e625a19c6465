package node

import (
	"context"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// withdrawTime is how long a node that ends waits until the cluster knows that it takes no more packets from other nodes.
const withdrawTime = 3 * time.Second

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
func (n *Node) announce(port uint16) {
	switch {
	case n.edgeSource() == nil:
	case port == 0:
		n.announcer.Withdraw()
	default:
		n.announcer.Announce(port)
	}
}

// tellCluster tells other nodes whether this one takes part in the edge, until ctx ends. A node that ends takes no part: others hand new connections
// over to the remaining nodes, or serve them themselves.
func (n *Node) tellCluster(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		if n.announcer.Announced() {
			n.announcer.Withdraw()
			last, cancel := context.WithTimeout(running, withdrawTime)
			defer cancel()
			if err := n.announcer.Wait(last); err != nil {
				n.log.Warn("other nodes do not know that this node takes no more packets from them", "error", err)
			}
		}
		stop()
	})
	return n.announcer.Run(running)
}
