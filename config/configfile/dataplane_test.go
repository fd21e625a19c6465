package configfile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/configfile"
)

func TestLoadNFTables(t *testing.T) {
	const head = "apiVersion: switchyard.net/v1alpha1\nkind: NFTablesConfiguration\n"
	c, _, err := configfile.LoadNFTables([]byte(head+"masqueradeBit: 3\nsyncPeriod: 1m\ndetectLocalMode: BridgeInterface\n"+
		"detectLocal: {bridgeInterface: cni0}\nnodePortAddresses: [192.0.2.0/24]\nlinux: {masqueradeAll: true}\n"), configfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != config.ModeNFTables || c.MasqueradeBit() != 3 || c.NFTables.MaxAffinityClients != config.Default().NFTables.MaxAffinityClients ||
		c.SyncPeriod.Duration != time.Minute || c.LocalDetector().BridgeInterface != "cni0" || len(c.NodePorts().CIDRs) != 1 || !c.Linux.MasqueradeAll {
		t.Errorf("the file says %+v", c)
	}
	for text, want := range map[string]string{
		head + "masqueradeBit: 40\n":                                   "configuration:3:16: masqueradeBit: must be the number of a bit",
		head + "mode: iptables\n":                                      "mode: there is no such field",
		head + "detectLocalMode: Bridge\n":                             "configuration:3:18: detectLocalMode: must be",
		head + "nodePortAddresses: [here]\n":                           "nodePortAddresses",
		"apiVersion: switchyard.net/v1\nkind: NFTablesConfiguration\n": "apiVersion: must be switchyard.net/v1alpha1",
		"apiVersion: switchyard.net/v1alpha1\nkind: Frob\n":            "kind: must be KubeProxyConfiguration",
	} {
		if _, _, err := configfile.LoadNFTables([]byte(text), configfile.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	whole := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nsyncPeriod: 2m\n"
	if c, _, err := configfile.LoadNFTables([]byte(whole), configfile.Options{}); err != nil || c.SyncPeriod.Duration != 2*time.Minute {
		t.Errorf("the whole configuration: %+v, %v", c, err)
	}
}
