package config

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// registry is the feature gates of one release of Kubernetes, as make feature-gates prints them. One line names the
// release. Each further line has a gate and its default. They are the gates of all components, because one list of
// gates is often given to all of them.
//
//go:embed featuregates.txt
var registry string

// gateDefaults maps the gates of the registry to their defaults.
var gateDefaults = sync.OnceValue(func() map[string]bool {
	defaults := map[string]bool{}
	for line := range strings.Lines(registry) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			defaults[name] = value == "true"
		}
	}
	return defaults
})

// GatesRelease returns the release of Kubernetes whose feature gates are known, such as v1.37.2.
func GatesRelease() string {
	first, _, _ := strings.Cut(strings.TrimPrefix(registry, "# Kubernetes "), ",")
	return first
}

// GateExternalIPs is the feature gate of KEP-5707: when it is false, no externalIP is routed.
const GateExternalIPs = "AllowServiceExternalIPs"

// GateIPVS is the feature gate of KEP-5495: when it is set to false, mode ipvs is refused.
const GateIPVS = "KubeProxyIPVS"

// Gate reports whether a feature gate is on: as FeatureGates says, or as it is by default in [GatesRelease].
func (c *Config) Gate(name string) bool {
	if on, set := c.FeatureGates[name]; set {
		return on
	}
	return gateDefaults()[name]
}

// UnknownGates returns the names in FeatureGates that are not feature gates of [GatesRelease], sorted.
func (c *Config) UnknownGates() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.FeatureGates)), func(name string) bool {
		_, known := gateDefaults()[name]
		return known
	})
}

// alwaysOn are the gates of kube-proxy on Linux whose features are not switched here, but always there.
var alwaysOn = []string{
	"ComponentFlagz", "ComponentStatusz", "MultiCIDRServiceAllocator", "NFTablesNetlink", "NFTablesProxyMode", "PreferSameTrafficDistribution",
}
