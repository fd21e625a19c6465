package node

import (
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/ops/metrics"
)

// affinityPause is for how long the numbers of remembered clients are not asked for again.
const affinityPause = time.Second

// affinity has how many clients with affinity are remembered.
type affinity struct {
	mu    sync.Mutex
	at    time.Time // of the last question
	shown []metrics.AffinityClients
}

// affinityClients returns how many clients the nftables dataplane remembers. It is empty if there is none, and where the kernel does not tell.
func (n *Node) affinityClients() []metrics.AffinityClients {
	s, ok := n.dataplane.(*switchable)
	if !ok {
		return nil
	}
	a := &n.affinity
	a.mu.Lock()
	defer a.mu.Unlock()
	base := s.nftables()
	if base == nil {
		a.at, a.shown = time.Time{}, nil
		return nil
	}
	now := time.Now()
	if !a.at.IsZero() && now.Sub(a.at) < affinityPause {
		return a.shown
	}
	a.at, a.shown = now, nil
	clients, err := base.AffinityClients()
	if err != nil {
		n.log.Warn("cannot find out how many clients with affinity are remembered", "error", err)
		return nil
	}
	for _, c := range clients {
		a.shown = append(a.shown, metrics.AffinityClients(c))
	}
	return a.shown
}
