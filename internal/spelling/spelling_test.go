package spelling

import "testing"

func TestClosest(t *testing.T) {
	names := []string{"clusterIP", "clusterIPs", "port", "ports", "nodePort", "type"}
	for name, want := range map[string]string{
		"clusterip": "clusterIP", "clusterIp": "clusterIP", "prots": "ports", "nodPort": "nodePort",
		"tpye": "type", "prot": "port", "colour": "", "x": "", "": "",
	} {
		if got := Closest(name, names); got != want {
			t.Errorf("%q: want %q, got %q", name, want, got)
		}
	}
	for pair, want := range map[[2]string]int{{"", ""}: 0, {"", "ab"}: 2, {"web", "wbe"}: 1, {"abcd", "badc"}: 2, {"kitten", "sitting"}: 3, {"ca", "abc"}: 3} {
		if got := Distance(pair[0], pair[1]); got != want {
			t.Errorf("%q: want %d, got %d", pair, want, got)
		}
	}
}
