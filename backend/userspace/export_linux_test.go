package userspace

// Remembered is how many clients with affinity are remembered.
func (b *Backend) Remembered() int { return b.relay.remembered() }
