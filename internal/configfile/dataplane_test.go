package configfile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

func loadNFTables(text string) (*config.Config, []config.Note, error) {
	return configfile.Load([]byte(text), configfile.Options{Dataplanes: []string{configfile.KindNFTables}})
}

func TestLoadNFTables(t *testing.T) {
	const head = "apiVersion: switchyard.net/v1alpha1\nkind: NFTablesConfiguration\n"
	c, _, err := loadNFTables(head + "masqueradeBit: 3\nsyncPeriod: 1m\ndetectLocalMode: BridgeInterface\n" +
		"detectLocal: {bridgeInterface: cni0}\nnodePortAddresses: [192.0.2.0/24]\nlinux: {masqueradeAll: true}\n")
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
		if _, _, err := loadNFTables(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	whole := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nsyncPeriod: 2m\n"
	if c, _, err := loadNFTables(whole); err != nil || c.SyncPeriod.Duration != 2*time.Minute {
		t.Errorf("the whole configuration: %+v, %v", c, err)
	}
}

// TestLoadEBPF: the file of the hooks also has the section of nftables, which is below them.
func TestLoadEBPF(t *testing.T) {
	const head = "apiVersion: switchyard.net/v1alpha1\nkind: EBPFConfiguration\n"
	o := configfile.Options{Dataplanes: []string{configfile.KindEBPF}}
	c, _, err := configfile.Load([]byte(head+"cgroupPath: /sys/fs/cgroup/node-a\npods: false\nnftables: {masqueradeBit: 3}\nsyncPeriod: 1m\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != config.ModeEBPF || c.EBPF.CgroupPath != "/sys/fs/cgroup/node-a" || c.EBPF.Pods || c.MasqueradeBit() != 3 || c.SyncPeriod.Duration != time.Minute {
		t.Errorf("the file says %+v", c)
	}
	for text, want := range map[string]string{
		head + "meshPorts: [0]\n":                "configuration:3:13: meshPorts[0]: must be a port",
		head + "nftables: {masqueradeBit: 40}\n": "configuration:3:27: nftables.masqueradeBit: must be the number of a bit",
		head + "masqueradeBit: 3\n":              "masqueradeBit: there is no such field",
	} {
		if _, _, err := configfile.Load([]byte(text), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestEveryDataplaneKind: each is read with its defaults and converted to itself, with its comments. None is taken where it is not asked for.
func TestEveryDataplaneKind(t *testing.T) {
	all := configfile.Options{Dataplanes: configfile.DataplaneKinds(), SkipOthers: true}
	for _, kind := range configfile.DataplaneKinds() {
		text := "apiVersion: " + configfile.SectionAPIVersion + "\nkind: " + kind + "\n"
		_, _, err := configfile.Load([]byte(text), configfile.Options{})
		if err == nil || !strings.Contains(err.Error(), "kind: must be KubeProxyConfiguration, got "+kind) || !strings.Contains(err.Error(), "its fields are in the section ") {
			t.Errorf("%s in the place of the whole configuration: %v", kind, err)
		}
		c, notes, err := configfile.Load([]byte(text), all)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if len(notes) > 0 {
			t.Errorf("%s: notes %v", kind, notes)
		}
		want := config.Default()
		want.Mode = c.Mode
		if live, restart, none := config.Diff(want, c); len(live)+len(restart)+len(none) > 0 {
			t.Errorf("%s: %v %v %v are not at their defaults", kind, live, restart, none)
		}
		whole, _ := convert(t, "# Of all nodes.\n"+text, "v1alpha2", all)
		if !strings.HasPrefix(whole, "# Of all nodes.\n"+text) || strings.Count(whole, "\n") < 5 {
			t.Errorf("%s is converted to\n%s", kind, whole)
		}
		if again, _ := convert(t, whole, "v1alpha2", all); again != whole {
			t.Errorf("%s, converted twice, is\n%s\nand not\n%s", kind, again, whole)
		}
		inMap := "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
		if _, _, err := configfile.Load([]byte(inMap), all); err != nil {
			t.Errorf("%s in a ConfigMap: %v", kind, err)
		}
	}
}

// TestDataplaneFileAndInstance: the settings of one node combine with the file of a dataplane in the same way as with
// the whole configuration.
func TestDataplaneFileAndInstance(t *testing.T) {
	files := func(own string) []configfile.File {
		return []configfile.File{
			{Name: "shared", Data: []byte("apiVersion: switchyard.net/v1alpha1\nkind: NFTablesConfiguration\nmetricsBindAddress: 127.0.0.1:1\n# three\nmasqueradeBit: 3\n")},
			{Name: "own", Data: []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyInstanceConfiguration\n" + own)},
		}
	}
	o := configfile.Options{Dataplanes: []string{configfile.KindNFTables}}
	c, _, err := configfile.LoadFiles(files("hostnameOverride: a\nhealthzBindAddress: 127.0.0.1:2\n"), o)
	if err != nil || c.HostnameOverride != "a" || c.HealthzBindAddress.Port() != 2 || c.MetricsBindAddress.Port() != 1 || c.NFTables.MasqueradeBit != 3 {
		t.Errorf("together they are %+v, %v", c, err)
	}
	text, notes, err := configfile.Convert(files("hostnameOverride: a\nhealthzBindAddress: 127.0.0.1:2\n"), "v1alpha2", o)
	if err != nil || !strings.Contains(string(text), "healthzBindAddress: 127.0.0.1:2\n") || !strings.Contains(string(text), "# three\nmasqueradeBit: 3\n") ||
		len(notes) != 1 || notes[0].File != "own" || notes[0].Path != "hostnameOverride" {
		t.Errorf("converted to\n%s\n%v, %v", text, notes, err)
	}
	_, _, err = configfile.LoadFiles(files("metricsBindAddress: 127.0.0.1:3\n"), o)
	if want := `own:3:21: metricsBindAddress: is "127.0.0.1:3" here, and "127.0.0.1:1" in shared:3:21`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a conflict: %v, want %s", err, want)
	}
	_, _, err = configfile.LoadFiles(append(files(""), configfile.File{Name: "whole", Data: []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n")}), o)
	if err == nil || !strings.Contains(err.Error(), "is a second configuration, after the NFTablesConfiguration in shared:1") {
		t.Errorf("two configurations: %v", err)
	}
}
