package relayserver

import clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"

// A part is sent once it has enough, and never grows beyond tooMuch, unless with a single object: the API server admits
// objects of up to 1.5 MiB, and followers take messages of up to 64 MiB. Large parts cost memory at both ends, small ones time.
const (
	enough  = 64 << 10
	tooMuch = 128 << 10
)

// overhead is what an object or a ref takes in a part besides itself: its tag and its length.
const overhead = 4

// parts cuts an update.
type parts struct {
	stream stream
	full   bool
	part   *clusterv1.FollowResponse // nil if it has to be begun
	size   int
}

func (p *parts) begin() {
	if p.part == nil {
		p.part, p.size = &clusterv1.FollowResponse{Full: p.full}, 0
	}
}

// makeRoom sends the part if it should not take another size bytes, and counts them to what it will take.
func (p *parts) makeRoom(size int) error {
	size += overhead
	if p.size >= enough || (p.size > 0 && p.size+size > tooMuch) {
		if err := p.stream.Send(p.part); err != nil {
			return err
		}
		p.part = nil
	}
	p.begin()
	p.size += size
	return nil
}
