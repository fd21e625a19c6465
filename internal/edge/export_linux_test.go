package edge

// Hears reports whether each node with shares has answered the last probe. Until then, one may yet be taken for silent that has started just now.
func (e *Edge) Hears() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, p := range e.peers.byID {
		last := p.probes.missed == 0 && p.probes.answered > 0 || e.prober.hasAnswered(id)
		if p.probes.on && e.ports.shares[id] > 0 && !last {
			return false
		}
	}
	return true
}
