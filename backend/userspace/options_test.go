package userspace

import "testing"

func TestOptionsFitTheOpenFiles(t *testing.T) {
	for files, want := range map[int][3]int{1 << 20: {1 << 16, 1 << 16, 256}, 20000: {4856, 9712, 256}, 576: {110, 220, 36}, 24: {2, 4, 1}} {
		o, _ := Options{}.withDefaults()
		o, pipes := o.within(files)
		if got := [3]int{o.MaxConnections, o.MaxUDPFlows, pipes}; got != want {
			t.Errorf("with %d files, there are so many connections, flows and pipes: %v, want %v", files, got, want)
		}
		if sum := 2*o.MaxConnections + o.MaxUDPFlows + 2*pipes + ownFiles; files > 100 && sum > files {
			t.Errorf("with %d files, the relay may have %d", files, sum)
		}
	}
}
