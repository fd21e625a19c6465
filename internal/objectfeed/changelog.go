package objectfeed

import "github.com/switchyard-net/switchyard/model"

// logLimit is how many changed objects a feed remembers. At 48 bytes each they are 3 MiB at most. A consumer that is further
// behind gets the full set.
const logLimit = 1 << 16

// changeLog remembers which objects changed in which revision, up to limit refs: a ring, filled by appending at first.
type changeLog struct {
	limit int
	ring  []logged
	next  int // where the oldest item is, once the ring is full
	// forgotten is the newest revision of which refs may be missing.
	forgotten Revision
}

type logged struct {
	revision Revision
	ref      model.Ref
}

func (l *changeLog) add(revision Revision, ref model.Ref) {
	item := logged{revision, ref}
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, item)
		return
	}
	l.forgotten = l.ring[l.next].revision
	l.ring[l.next] = item
	l.next = (l.next + 1) % l.limit
}

// since returns what has changed after a revision, with repetitions. ok is false if some of it may have been forgotten.
func (l *changeLog) since(after Revision) (changed []model.Ref, ok bool) {
	if after < l.forgotten {
		return nil, false
	}
	for i := range l.ring {
		item := l.ring[(l.next+len(l.ring)-1-i)%len(l.ring)]
		if item.revision <= after {
			break
		}
		changed = append(changed, item.ref)
	}
	return changed, true
}
