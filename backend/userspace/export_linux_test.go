package userspace

// Remembered is how many clients with affinity are remembered.
func (b *Backend) Remembered() int { return b.relay.remembered() }

// MeetPredecessor returns a connection to a process that has released its relay.
var MeetPredecessor = meetPredecessor
