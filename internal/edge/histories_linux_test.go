package edge_test

import (
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestHistories: a node may miss changes that another one sees, since changes come together if there are many. Open connections go on although the tables
// of nodes have other owners, and in another order.
func TestHistories(t *testing.T) {
	only := func(node string) map[string]uint32 { return map[string]uint32{node: 1} }
	t.Run("two changes behind", func(t *testing.T) {
		l := newLab(t, state.IPv4, "pa1", "pb1", "pc1")
		l.on(only("c"))
		var all []*flows
		for _, vip := range vips {
			all = append(all, l.open("tcp", at(vip, webPort), 20))
		}
		l.apply(only("b"), "a")
		l.apply(only("a"), "a")
		for _, f := range all {
			f.turn(3)
			f.end("b has only seen that c owns all slots")
		}
	})
	t.Run("another order", func(t *testing.T) {
		l := newLab(t, state.IPv4, "pa1", "pb1", "pc1")
		l.on(only("c"))
		l.apply(only("b"))
		var all []*flows
		for _, vip := range vips {
			all = append(all, l.open("tcp", at(vip, webPort), 20))
		}
		l.apply(only("c"), "a")
		l.apply(only("a"))
		for _, f := range all {
			f.turn(3)
			f.end("c has not seen that it owned all slots once more")
		}
	})
}
