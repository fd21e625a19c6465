package test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestModesOfChart: image, capabilities, mounts and the argument of apply follow the mode.
func TestModesOfChart(t *testing.T) {
	usual, ebpf := []string{"NET_ADMIN"}, []string{"NET_ADMIN", "BPF", "PERFMON", "DAC_READ_SEARCH"}
	for _, tt := range []struct {
		mode, image string
		caps        []string
		locks       bool
	}{
		{"nftables", "example.org/proxy:v1", usual, false},
		{"ebpf", "example.org/proxy:v1", ebpf, false},
		{"ipvs", "example.org/proxy:v1", usual, false},
		{"userspace", "example.org/proxy:v1", usual, false},
		{"iptables", "example.org/proxy:v1-iptables", []string{"NET_ADMIN", "NET_RAW"}, true},
		{"", "example.org/proxy:v1", usual, false},
	} {
		for _, split := range []bool{false, true} {
			all := rendered(t, values{
				"image":        values{"repository": "example.org/proxy", "tag": "v1"},
				"config":       values{"mode": tt.mode},
				"capabilities": []any{"NET_ADMIN"},
				"split":        values{"enabled": split},
			})
			pod := all["DaemonSet switchyard"].Object["spec"].(values)["template"].(values)["spec"].(values)
			name := map[bool]string{false: "switchyard", true: "apply"}[split]
			c := containerOf(t, pod, name)
			if c["image"] != tt.image {
				t.Errorf("mode %q: the image is %v, want %s", tt.mode, c["image"], tt.image)
			}
			caps, _, err := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "add")
			if err != nil || !slices.Equal(caps, tt.caps) {
				t.Errorf("mode %q: the capabilities are %v, want %v; %v", tt.mode, caps, tt.caps, err)
			}
			mounted := slices.ContainsFunc(c["volumeMounts"].([]any), func(m any) bool { return m.(values)["mountPath"] == "/run/xtables.lock" })
			there := slices.ContainsFunc(pod["volumes"].([]any), func(v any) bool { return v.(values)["name"] == "xtables-lock" })
			if mounted != tt.locks || there != tt.locks {
				t.Errorf("mode %q: the lock of iptables is mounted: %v, and a volume: %v, want %v", tt.mode, mounted, there, tt.locks)
			}
			want := tt.mode
			if want == "" {
				want = "nftables"
			}
			if args := c["args"].([]any); split && args[1] != want {
				t.Errorf("mode %q: the arguments are %v", tt.mode, args)
			}
		}
	}
}

func containerOf(t *testing.T, pod values, name string) values {
	t.Helper()
	for _, c := range pod["containers"].([]any) {
		if c := c.(values); c["name"] == name {
			return c
		}
	}
	t.Fatalf("there is no container %s", name)
	return nil
}
