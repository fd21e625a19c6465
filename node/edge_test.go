package node

import (
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestUnannounced: a process that cannot annotate its Node says what is wrong with the annotation.
func TestUnannounced(t *testing.T) {
	for _, c := range []struct {
		what       string
		seen, port uint16
		peers      int
		want       string
	}{
		{"others see it as it is", 7635, 7635, 2, ""},
		{"a node apart, which takes nothing", 0, 0, 2, ""},
		{"nobody has annotated it", 0, 7635, 2, "node b does not tell others that it takes packets, and this process cannot annotate Nodes: annotate it with switchyard.net/edge=v1,7635"},
		{"somebody has, for another configuration", 7000, 7635, 2, "node b tells others port 7000, and this process cannot annotate Nodes: annotate it with switchyard.net/edge=v1,7635"},
		{"somebody has, and it takes nothing", 7635, 0, 2, "other nodes hand packets over to this one, which takes none: remove the annotation switchyard.net/edge from Node b"},
		{"a server without the edge", 0, 7635, 0, "the state has no Nodes to hand packets over to: set edge.mode at the server of the API, too"},
	} {
		n := &state.Node{Name: "b", Peers: []state.Peer{{Name: "a", Port: 1}, {Name: "b", Port: c.seen}}[:c.peers]}
		if got := portSeen(n); got != c.seen {
			t.Errorf("%s: others see port %d, want %d", c.what, got, c.seen)
		}
		err := unannounced(n, c.seen, c.port)
		if err == nil != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}
