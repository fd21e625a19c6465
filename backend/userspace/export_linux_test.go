package userspace

// Carried is how many connections and flows are open.
func (b *Backend) Carried() int { return b.relay.carried() }
