package userspace

// Carried is how many connections and flows are open.
func (b *Backend) Carried() int { return b.relay.carried() }

// Remembered is how many clients with affinity are remembered.
func (b *Backend) Remembered() int { return b.relay.remembered() }
