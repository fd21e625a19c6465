package protoconv

import (
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Most updates are one service that has changed, and are the same for all nodes that see it alike. Their messages are made once.

// deltaKey identifies such an update, without its position.
type deltaKey struct {
	record  *state.Service
	trigger time.Time // zero for none
}

// deltas are the messages of the latest position that was asked for.
type deltas struct {
	mu   sync.RWMutex // guards all below
	at   Position
	made map[deltaKey][]byte
}

// maxDeltas is enough for the zones of a cluster. A service may look different from each node that an endpoint is on; those nodes
// need their messages once.
const maxDeltas = 16

// get returns the message for an update, which make makes. It is shared and must not be modified.
func (d *deltas) get(at Position, key deltaKey, make func() []byte) []byte {
	d.mu.RLock()
	message := d.made[key]
	known := d.at == at
	d.mu.RUnlock()
	if known && message != nil {
		return message
	}
	message = make()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at != at {
		if d.at.Instance == at.Instance && d.at.Revision > at.Revision {
			return message // for a node that is late
		}
		d.at, d.made = at, nil
	}
	if d.made == nil {
		d.made = map[deltaKey][]byte{}
	}
	if len(d.made) < maxDeltas {
		d.made[key] = message
	}
	return message
}

// alike returns the key of an update that other nodes may get as it is.
func alike(u *state.Update, node *state.Node) (key deltaKey, ok bool) {
	if u.Full || node != nil || len(u.Changed) != 1 || len(u.Removed) > 0 || len(u.Triggers) > 1 {
		return key, false
	}
	key.record = u.Changed[0]
	if len(u.Triggers) > 0 {
		key.trigger = u.Triggers[0]
	}
	return key, true
}
