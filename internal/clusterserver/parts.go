package clusterserver

import (
	"sync"
	"weak"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
)

// A part is sent once it has targetSize, and grows beyond maxSize only with a single object. The API server admits
// objects of up to 1.5 MiB, and followers accept messages of up to 64 MiB. Large parts cost memory at both ends, small
// ones time.
const (
	targetSize = 64 << 10
	maxSize    = 128 << 10
)

// overhead is what an object or a ref takes in a part besides itself: its tag and its length.
const overhead = 4

// partition is an update cut into parts, each marshalled once for all followers that receive it.
//
// The parts of the latest full set are kept until all senders are done. The parts of other updates are kept by their
// current senders, until the next garbage collection. So all followers that do not read share one set, and hold one
// part each in addition.
type partition struct {
	update   *objectlog.Update
	instance uint64

	mu     sync.Mutex // guards all below
	begins []int      // where the parts begin that are known so far, in the update's objects followed by its refs
	parts  []weak.Pointer[part]
	keep   bool
	kept   []*part
}

// part is a marshalled FollowResponse. It is immutable.
type part struct {
	bytes []byte
	last  bool
}

// partitions are those that are being sent.
type partitions struct {
	mu     sync.Mutex // guards all below
	latest *partition // of a full update, whose parts are kept; nil if no stream sends it
	users  int        // of latest
}

// begin returns the partition of an update, which all followers share. The caller calls done when it has sent it.
func (s *partitions) begin(u *objectlog.Update, instance uint64) (p *partition, done func()) {
	p = u.Memo(func(u *objectlog.Update) any {
		return &partition{update: u, instance: instance, begins: []int{0}}
	}).(*partition)
	if !u.Full {
		return p, func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.latest != nil && s.latest.update.Revision > u.Revision:
		return p, func() {}
	case s.latest != p:
		s.replace(p)
	}
	s.users++
	return p, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.latest != p {
			return
		}
		if s.users--; s.users == 0 {
			s.replace(nil)
		}
	}
}

// replace begins to keep the parts of p, and releases the parts of the previous one. The caller holds mu.
func (s *partitions) replace(p *partition) {
	if s.latest != nil {
		s.latest.keepParts(false)
	}
	s.latest, s.users = p, 0
	if p != nil {
		p.keepParts(true)
	}
}

func (p *partition) keepParts(keep bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep, p.kept = keep, nil
}

// part returns the i-th part. Parts are asked for in order, by each follower from 0 to the last.
func (p *partition) part(i int) *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < len(p.parts) {
		if made := p.parts[i].Value(); made != nil {
			return made
		}
	}
	made, end := p.make(p.begins[i])
	if i == len(p.parts) {
		p.parts = append(p.parts, weak.Pointer[part]{})
		p.begins = append(p.begins, end)
	}
	p.parts[i] = weak.Make(made)
	if p.keep {
		p.kept = append(p.kept, made)
	}
	return made
}

// make marshals the part that begins at i, and returns where it ends.
func (p *partition) make(i int) (made *part, end int) {
	u := p.update
	message := &clusterv1.FollowResponse{Full: u.Full}
	size := 0
	// room reports whether the part takes another size bytes.
	room := func(more int) bool {
		more += overhead
		if size >= targetSize || (size > 0 && size+more > maxSize) {
			return false
		}
		size += more
		return true
	}
	for ; i < len(u.Set); i++ {
		m := protoconv.Object(u.Set[i])
		if !room(proto.Size(m)) {
			break
		}
		message.Set = append(message.Set, m)
	}
	for ; i >= len(u.Set) && i < len(u.Set)+len(u.Deleted); i++ {
		m := protoconv.Ref(u.Deleted[i-len(u.Set)])
		if !room(proto.Size(m)) {
			break
		}
		message.Deleted = append(message.Deleted, m)
	}
	last := i == len(u.Set)+len(u.Deleted)
	if last {
		message.Position = &clusterv1.Position{InstanceId: p.instance, Rev: uint64(u.Revision)}
	}
	return &part{protoconv.Marshal(message), last}, i
}
