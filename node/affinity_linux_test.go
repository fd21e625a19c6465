package node_test

import (
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// TestAffinityClients: the metrics have how many clients can be remembered, as it is configured by then, in modes with nftables.
func TestAffinityClients(t *testing.T) {
	c, err := nft.Dial()
	check(t, err)
	defer c.Close()
	if has, err := c.Has(nft.ElementCounts); err != nil || !has {
		t.Skipf("this kernel does not have %s, as Linux %s has: %v", nft.ElementCounts.Name, nft.ElementCounts.Since, err)
	}
	n := newCounted(t)
	limit := func(max int32) func(*config.Config) {
		return func(c *config.Config) { c.NFTables.MaxAffinityClients = max }
	}
	const none, most = `switchyard_nftables_affinity_clients{ip_family="IPv4"} 0`, `switchyard_nftables_affinity_clients_limit{ip_family="IPv6"} `
	n.configure(config.ModeNFTables, false, limit(77))
	n.shows(none, true)
	n.shows(most+"77\n", true)
	n.configure(config.ModeUserspace, false, limit(78))
	n.shows(most+"78\n", true)
	n.configure(config.ModeIPTables, false)
	n.shows("switchyard_nftables_affinity", false)
}
