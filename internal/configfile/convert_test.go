package configfile_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

func convert(t *testing.T, text, version string, o configfile.Options) (string, []string) {
	t.Helper()
	out, notes, err := configfile.Convert([]configfile.File{{Name: "f", Data: []byte(text)}}, version, o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.String())
	}
	return string(out), lines
}

const commented = `# The proxy of all nodes.

apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
# What pods have.
clusterCIDR: 10.244.0.0/16 # from kubeadm
# Nobody uses it.
portRange: ""
conntrack: # for large nodes
  # Twice the default.
  maxPerCore: 65536
nodePortAddresses:
  # The management network.
  - 192.0.2.0/24
  - primary # of the Node
# The end.
`

func TestCommentsGoWithTheirFields(t *testing.T) {
	text, notes := convert(t, commented, "v1alpha2", configfile.Options{})
	for _, want := range []string{
		"# The proxy of all nodes.\n",
		"  # What pods have.\n  clusterCIDRs: # from kubeadm\n",
		"  conntrack: # for large nodes\n    # Twice the default.\n    maxPerCore: 65536\n",
		"  - primary # of the Node\n",
		"  # The management network.\n  - 192.0.2.0/24\n",
		"# The end.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the file does not have\n%s", want)
		}
	}
	if diff := cmp.Diff([]string{"the comment in line 7: is lost: # Nobody uses it."}, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if t.Failed() {
		t.Log(text)
	}

	again, notes := convert(t, text, "v1alpha2", configfile.Options{})
	if diff := cmp.Diff(text, again); diff != "" || len(notes) > 0 {
		t.Errorf("converting it again changes it: %q\n%s", notes, diff)
	}
	back, notes := convert(t, text, "v1alpha1", configfile.Options{})
	for _, want := range []string{"# What pods have.\nclusterCIDR: 10.244.0.0/16 # from kubeadm\n", "conntrack: # for large nodes\n  # Twice"} {
		if !strings.Contains(back, want) {
			t.Errorf("the old file does not have\n%s\n%s", want, back)
		}
	}
	if len(notes) > 0 {
		t.Errorf("notes = %q", notes)
	}
}

// TestManyComments has a file that is hardly anything else.
func TestManyComments(t *testing.T) {
	var text strings.Builder
	text.WriteString(v1)
	for i := range 50_000 {
		fmt.Fprintf(&text, "# number %d\n", i)
	}
	text.WriteString("portRange: \"\" # beside\n")
	_, notes := convert(t, text.String(), "v1alpha2", configfile.Options{})
	if n := len(notes); n != 21 || notes[20] != "comments: are lost in 49981 more lines" {
		t.Errorf("%d notes: %.2000q", n, notes)
	}
}

// FuzzConvert expects that a conversion keeps the meaning of the file, or names the losses, for any comments.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(commented))
	f.Add([]byte(v2 + "nodePortAddresses: [primary, # a\n all] # b\nlinux: # c\n  # d\n  masqueradeAll: true\n"))
	f.Add([]byte("# a\n---\n# b\n" + v2 + "---\n# c\n"))
	f.Add([]byte(v2 + "mode: ipvs\nminSyncPeriod: 0s\nnodeIPOverride: [192.0.2.1, '2001:db8::1']\nhealthzBindAddress: ''\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files := []configfile.File{{Name: "f", Data: data}}
		c, _, err := configfile.LoadFiles(files, configfile.Options{SkipOthers: true})
		for _, version := range configfile.Versions() {
			text, notes, converted := configfile.Convert(files, version, configfile.Options{SkipOthers: true})
			if (err == nil) != (converted == nil) {
				t.Fatalf("%s: Load returns %v, Convert %v", version, err, converted)
			}
			if err != nil {
				continue
			}
			again, _, err := configfile.Load(text, configfile.Options{})
			if err != nil {
				t.Fatalf("%s: does not read what it writes: %v\n%s", version, err, text)
			}
			live, restart, none := config.Diff(c, again)
			for _, paths := range [][]string{live, restart, none} {
				for _, path := range paths {
					lost := "is lost: it is " + c.Text(path) + ", and a file of v1alpha1 means " + again.Text(path)
					if version == "v1alpha2" || !slices.ContainsFunc(notes, func(n config.Note) bool { return n.Text == lost }) {
						t.Errorf("%s: %s changes from %s to %s: %v", version, path, c.Text(path), again.Text(path), notes)
					}
				}
			}
		}
	})
}

// TestConvertingBackNamesWhatIsLost sets each field of v1alpha2 alone, in each mode. The file of v1alpha1 has the same
// meaning, or the difference is named. Converting the result there and back once more does not change it.
func TestConvertingBackNamesWhatIsLost(t *testing.T) {
	lost := map[string]bool{}
	for _, mode := range []string{"", "nftables", "ipvs"} {
		base := marshal(t, config.Default())
		fields(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, typ reflect.Type) {
			if path == "edge.mode" && mode == "ipvs" {
				return // the mode has no edge
			}
			values := map[string]any{"mode": mode}
			if path != "mode" {
				values[path] = sample(t, path, typ, at(t, base, path))
			}
			data := file(t, v1alpha2.APIVersion, values)
			want, _ := load(t, data)
			text, notes := convert(t, string(data), "v1alpha1", configfile.Options{})
			got, more := load(t, []byte(text))
			live, restart, none := config.Diff(want, got)
			different := slices.Concat(live, restart, none)
			for _, p := range different {
				lost[p] = true
				note := p + ": is lost: it is " + want.Text(p) + ", and a file of v1alpha1 means " + got.Text(p)
				if !slices.Contains(notes, note) {
					t.Errorf("mode %q: %s is lost without a note: %q", mode, p, notes)
				}
			}
			if len(notes) != len(different) {
				t.Errorf("mode %q: %s: notes = %q, lost %v", mode, path, notes, different)
			}
			for _, n := range more {
				if n.Path != "bindAddress" && n.Path != "iptables.masqueradeBit" {
					t.Errorf("mode %q: %s: what was written is read with the note %v", mode, path, n)
				}
			}
			if mode != "" {
				return
			}
			forth, notes := convert(t, text, "v1alpha2", configfile.Options{})
			if len(notes) != len(more) {
				t.Errorf("mode %q: %s: notes = %q", mode, path, notes)
			}
			back, notes := convert(t, forth, "v1alpha1", configfile.Options{})
			if diff := cmp.Diff(text, back); diff != "" || len(notes) > 0 {
				t.Errorf("mode %q: %s changes with every conversion: %q\n%s", mode, path, notes, diff)
			}
		})
	}
	want := []string{
		"acceptAnnotationsOf", "adminBindAddress", "allowModeFallback", "api.clientCAFile", "api.listen", "api.names", "api.socketMode", "api.socketUsers", "api.tlsCertFile", "api.tlsKeyFile", "configHardFail",
		"ebpf.cgroupPath", "ebpf.meshPorts", "ebpf.namespaceMap", "ebpf.pods", "edge.drain", "edge.frontends", "edge.interfaces", "edge.markBit", "edge.maxSlots", "edge.mode", "edge.mtu", "edge.port", "edge.services", "edge.tableSize", "edge.trustNetwork", "ejection.enabled", "ejection.probeTimeout", "ipFamilyPolicy", "iptables.masqueradeBit", "ipvs.masqueradeBit", "nftables.counters", "nftables.masqueradeBit",
		"nftables.maxAffinityClients", "nodeHealth.enabled", "nodeHealth.ignoreAbovePercent", "nodeHealth.notReadyAfter", "nodeIPOverride", "ping", "resetConnectionsToRemovedEndpoints", "serviceProxyName", "services.allowedExternalIPs", "services.maxEntries",
		"services.maxEntriesPerNamespace", "services.maxEntriesPerNode", "services.nodeExternalIPs", "uiBindAddress", "userspace.dialAttempts",
		"userspace.dialTimeout", "userspace.drainTimeout", "userspace.ejectAfterFailures", "userspace.ejectionTime", "userspace.listen",
		"userspace.maxAffinityClients", "userspace.maxConnections", "userspace.maxUDPFlows", "userspace.policy", "userspace.proxyProtocol",
		"userspace.udpIdleTimeout",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(lost))); diff != "" {
		t.Errorf("fields that can lose something (-want +got):\n%s", diff)
	}
}

func TestUnknownVersion(t *testing.T) {
	if _, _, err := configfile.Convert(nil, "v1", configfile.Options{}); err == nil || err.Error() != `there is no version "v1": use v1alpha2 or v1alpha1` {
		t.Errorf("Convert = %v", err)
	}
}
