package edge

import (
	"fmt"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/model"
)

// TestBounds: the configuration allows what an edge can do, and nothing else. So a process that has begun is not refused its edge for a number in its file.
func TestBounds(t *testing.T) {
	begin := func() *config.Config {
		c := config.Default()
		c.Edge.Mode = config.EdgeTCX
		return c
	}
	settings := func(e *config.Edge) Settings {
		return Settings{Port: uint16(e.Port), Mark: e.Mark(), MTU: int(e.MTU), TableSize: int(e.TableSize), MaxSlots: int(e.MaxSlots), Drain: e.Drain.Duration}
	}
	// alike reports whether both allow a configuration.
	alike := func(c *config.Config, what string) bool {
		t.Helper()
		s := settings(&c.Edge)
		_, refused := s.complete()
		faults := c.Validate("linux")
		if (len(faults) == 0) != (refused == nil) {
			t.Errorf("%s: the configuration says %v, and the edge %v", what, faults, refused)
		}
		return refused == nil
	}
	allowed := 0
	for size := int32(1); size < 20000; size++ { // 0 is the default of an edge, and no size in a file
		c := begin()
		if c.Edge.TableSize = size; alike(c, fmt.Sprintf("tables of %d slots", size)) {
			allowed++
		}
	}
	if allowed != len(plan.TableSizes) {
		t.Errorf("%d sizes of tables are allowed, want %v", allowed, plan.TableSizes)
	}
	for _, size := range plan.TableSizes {
		for _, slots := range []int{1, size - 1, size, size + 1, mostSlots - 1, mostSlots, mostSlots + 1} {
			c := begin()
			c.Edge.TableSize, c.Edge.MaxSlots = int32(size), int32(slots)
			alike(c, fmt.Sprintf("%d slots for tables of %d", slots, size))
		}
	}
	for _, mtu := range []int32{-1, 0, 1, leastMTU - 1, leastMTU, leastMTU + 1, mostMTU - 1, mostMTU, mostMTU + 1} {
		c := begin()
		c.Edge.MTU = mtu
		alike(c, fmt.Sprintf("an MTU of %d", mtu))
	}
	for _, drain := range []time.Duration{-time.Nanosecond, 0, time.Nanosecond, 1000 * time.Hour} {
		c := begin()
		c.Edge.Drain.Duration = drain
		alike(c, fmt.Sprintf("a drain of %v", drain))
	}
	for bit := range int32(32) { // other programs have some of them
		c := begin()
		if c.Edge.MarkBit = bit; len(c.Validate("linux")) == 0 {
			alike(c, fmt.Sprintf("bit %d", bit))
		}
	}
	for _, port := range []int32{-1, 0, 1, 2, 65534, 65535, 65536, 65536 + DefaultPort} {
		c := begin()
		c.Edge.Port = port
		s, err := settings(&c.Edge).complete()
		kept := err == nil && int32(s.Port) == port
		if faults := c.Validate("linux"); (len(faults) == 0) != kept {
			t.Errorf("port %d: the configuration says %v, and the edge takes port %d, %v", port, faults, s.Port, err)
		}
		if told, want := brain.EdgePort(&model.Node{Edge: fmt.Sprintf("v1,%d", port)}); kept && (int32(told) != port || want != "") {
			t.Errorf("port %d: other nodes read %d, and want %q", port, told, want)
		}
	}
	s, err := Settings{Mark: 1}.complete()
	if c := begin(); err != nil || int(c.Edge.TableSize) != s.TableSize || int(c.Edge.MaxSlots) != s.MaxSlots || c.Edge.Port != int32(s.Port) {
		t.Errorf("the configuration begins with %+v, and the edge with %+v, %v", c.Edge, s, err)
	}
}
