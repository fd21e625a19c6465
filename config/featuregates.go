package config

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// gateNames are the feature gates that kube-proxy 1.36 accepts, one a line: those of all components, because one list of gates is
// often given to all of them.
//
//go:embed featuregates.txt
var gateNames string

var knownGates = sync.OnceValue(func() map[string]bool {
	known := map[string]bool{}
	for name := range strings.FieldsSeq(gateNames) {
		known[name] = true
	}
	return known
})

// UnknownGates returns the names in FeatureGates that are no feature gates of Kubernetes, sorted.
func (c *Config) UnknownGates() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.FeatureGates)), func(name string) bool { return knownGates()[name] })
}

// alwaysOn are the gates of kube-proxy on Linux whose features are not switched here, but always there.
var alwaysOn = []string{
	"AllowServiceExternalIPs", "ComponentFlagz", "ComponentStatusz", "MultiCIDRServiceAllocator", "NFTablesProxyMode", "PreferSameTrafficDistribution",
}
