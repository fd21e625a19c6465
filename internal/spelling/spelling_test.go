package spelling

import "testing"

func TestClosest(t *testing.T) {
	names := []string{"clusterIP", "clusterIPs", "port", "ports", "nodePort", "type"}
	for name, want := range map[string]string{
		"clusterip": "clusterIP", "clusterIp": "clusterIP", "prots": "ports", "nodPort": "nodePort",
		"colour": "", "x": "", "": "",
	} {
		if got := Closest(name, names); got != want {
			t.Errorf("%q: want %q, got %q", name, want, got)
		}
	}
}
