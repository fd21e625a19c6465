package configfile_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

const (
	v1 = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	v2 = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"
)

// TestFaults has faults of a file, and the whole error for each.
func TestFaults(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"nothing", "# soon\n", []string{"f: is empty: it needs at least apiVersion and kind"}},
		{"not YAML", v2 + "mode: [\n", []string{"f:3: not valid YAML"}},
		{"a list", "- a\n", []string{"f:1:1: must be an object with apiVersion and kind, got a list"}},
		{"two documents", v2 + "---\n" + v2, []string{"f:4:1: is a second KubeProxyConfiguration, after the one in f:1:1: keep one"}},
		{"another kind", "apiVersion: v1\nkind: Pod\n", []string{`f:2:7: kind: must be KubeProxyConfiguration, got "Pod"`}},
		{"another version", "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration\n",
			[]string{`f:1:13: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1 or kubeproxy.config.k8s.io/v1alpha2, got "kubeproxy.config.k8s.io/v1"`}},
		{"strict about unknown fields", v2 + "syncPeriods: 1s\nnftables: {masqueradeBits: 1}\n", []string{
			"f:3:1: syncPeriods: there is no such field: did you mean syncPeriod?",
			"f:4:12: nftables.masqueradeBits: there is no such field: did you mean masqueradeBit?"}},
		{"a field given twice", v1 + "bindAddress: 192.0.2.1\nbindAddress: 192.0.2.2\n",
			[]string{"f:4:1: bindAddress: is given twice, first in line 3"}},
		{"types", v2 + "syncPeriod: 30\nconfigHardFail: maybe\nnodeIPOverride: [host]\nhealthzBindAddress: localhost:80\nipvs: {excludeCIDRs: [10.0.0.1]}\n", []string{
			"f:3:13: syncPeriod: must be a duration such as 30s or 1h30m, got 30: write 30s for as many seconds",
			`f:4:17: configHardFail: must be true or false, got "maybe"`,
			`f:5:18: nodeIPOverride[0]: must be an IP address such as 192.0.2.10, got "host"`,
			`f:6:21: healthzBindAddress: must be an IP address and port such as 0.0.0.0:10256 or [::]:10256, got "localhost:80"`,
			`f:7:23: ipvs.excludeCIDRs[0]: must be a CIDR such as 10.244.0.0/16, got "10.0.0.1"`}},
		{"values and types at once", v2 + "syncPeriod: soon\nnftables: {masqueradeBit: 40}\nlinux: {oomScoreAdj: 2000}\nnodePortAddresses: [all, all, here]\n", []string{
			`f:3:13: syncPeriod: must be a duration such as 30s or 1h30m, got "soon"`,
			"f:4:27: nftables.masqueradeBit: must be the number of a bit, from 0 to 31, got 40",
			"f:5:22: linux.oomScoreAdj: must be from -1000 to 1000, got 2000",
			"f:6:26: nodePortAddresses[1]: is the keyword all for the second time: take one out",
			`f:6:31: nodePortAddresses[2]: must be a CIDR such as 192.0.2.0/24 or one of the keywords primary, localhost and all, got "here"`}},
		{"paths of the old version", v1 + `mode: ipvs
oomScoreAdj: 2000
clusterCIDR: 10.0.0.0/8,10.1.0.0/16
conntrack: {min: -1}
ipvs: {syncPeriod: 1s, minSyncPeriod: 2s, tcpTimeout: -1s, excludeCIDRs: [x]}
iptables: {masqueradeBit: 32}
bindAddress: 127.0.0.1
metricsBindAddress: localhost
winkernel: {sourceVip: vip}
nodePortAddresses: [1]
`, []string{
			"f:4:14: oomScoreAdj: must be from -1000 to 1000, got 2000",
			"f:5:14: clusterCIDR: must be one CIDR, or two of different families, got [10.0.0.0/8 10.1.0.0/16]",
			"f:6:18: conntrack.min: must not be negative, got -1",
			"f:7:39: ipvs.minSyncPeriod: must not be greater than the syncPeriod of 1s, got 2s",
			"f:7:55: ipvs.tcpTimeout: must not be negative, got -1s",
			`f:7:75: ipvs.excludeCIDRs[0]: must be a CIDR such as 10.244.0.0/16, got "x"`,
			"f:8:27: iptables.masqueradeBit: must be the number of a bit, from 0 to 31, got 32",
			"f:9:14: bindAddress: must be an address that other nodes can reach, got 127.0.0.1",
			"f:10:21: metricsBindAddress: must be an IP address and port such as 0.0.0.0:10256 or [::]:10256, got \"localhost\"",
			`f:11:24: winkernel.sourceVip: must be an IP address such as 192.0.2.10, got "vip"`,
			"f:12:21: nodePortAddresses[0]: must be a string, got the number 1: put it in quotes"}},
		{"a lent bit is one fault", v1 + "iptables: {masqueradeBit: 32}\n",
			[]string{"f:3:27: iptables.masqueradeBit: must be the number of a bit, from 0 to 31, got 32"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := configfile.Load([]byte(tt.text), configfile.Options{Name: "f", Platform: "linux"})
			if err == nil {
				t.Fatal("no error")
			}
			lines := strings.Split(err.Error(), "\n")
			for i, want := range tt.want {
				if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
					t.Errorf("line %d is not\n%s\nin:\n%v", i, want, err)
				}
			}
			if len(lines) != len(tt.want) {
				t.Errorf("%d faults, want %d:\n%v", len(lines), len(tt.want), err)
			}
		})
	}
}

func TestUnknownFieldsOfV1alpha1AreNotes(t *testing.T) {
	_, notes := load(t, []byte(v1+"udpIdleTimeout: 250ms\niptables: {masqueradeBits: 3}\n"))
	if len(notes) != 2 || notes[0].String() != "udpIdleTimeout: is ignored: it was for the mode userspace, which Kubernetes 1.26 removed: leave it out; conntrack.udpTimeout is for connection tracking (line 3)" ||
		notes[1].String() != "iptables.masqueradeBits: is ignored: there is no such field: did you mean masqueradeBit? (line 4)" {
		t.Errorf("notes = %q", notes)
	}
}

func TestPlatformDecidesAboutModes(t *testing.T) {
	for _, tt := range []struct {
		mode, platform string
		ok             bool
	}{
		{"kernelspace", "windows", true}, {"kernelspace", "linux", false}, {"kernelspace", "", true},
		{"nftables", "linux", true}, {"nftables", "windows", false}, {`""`, "linux", true}, {`""`, "windows", true}, {"magic", "", false},
	} {
		_, _, err := configfile.Load([]byte(v2+"mode: "+tt.mode+"\n"), configfile.Options{Platform: tt.platform})
		if (err == nil) != tt.ok {
			t.Errorf("mode %s on %q: %v", tt.mode, tt.platform, err)
		}
	}
}

// TestConfigHardFail is about broken files, at the start and later.
func TestConfigHardFail(t *testing.T) {
	const fault = "syncPeriod: soon\nnftables: {masqueradeBit: 40}\nminSyncPeriod: 5s\n"
	running := config.Default()
	soft := config.Default()
	soft.ConfigHardFail = false
	tests := []struct {
		name    string
		running *config.Config
		text    string
		fatal   bool
		want    *config.Config // nil for the loaded one
	}{
		{"start, sound", nil, v2, false, nil},
		{"start, broken", nil, v2 + fault, true, nil},
		{"start, broken, soft", nil, v2 + fault + "configHardFail: false\n", false, nil},
		{"start, broken version", nil, "configHardFail: false\n", true, nil},
		{"start, broken YAML, soft", nil, v2 + "configHardFail: false\nmode: [\n", true, nil},
		{"start, broken v1alpha1", nil, v1 + "mode: magic\n", true, nil},
		{"later, sound", soft, v2, false, nil},
		{"later, broken", running, v2 + fault, true, nil},
		{"later, broken, the new file would be soft", running, v2 + fault + "configHardFail: false\n", true, nil},
		{"later, broken, soft", soft, v2 + fault, false, soft},
		{"later, broken YAML, soft", soft, "mode: [", false, soft},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			loaded, _, err := configfile.Load([]byte(tt.text), configfile.Options{})
			got, fatal := config.Choose(tt.running, loaded, err)
			if (fatal != nil) != tt.fatal {
				t.Fatalf("fatal = %v", fatal)
			}
			if tt.fatal {
				return
			}
			if want := tt.want; want != nil && got != want || got == nil {
				t.Errorf("goes on with %v", got)
			}
			if errs := got.Validate(""); len(errs) > 0 {
				t.Errorf("goes on with faults: %v", errs)
			}
			if strings.Contains(tt.text, "minSyncPeriod") && tt.running == nil && got.MinSyncPeriod.String() != "5s" {
				t.Errorf("minSyncPeriod = %v: a sound field of a broken file is lost", got.MinSyncPeriod)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(v2 + "nodePortAddresses: &a [*a]\nnodeIPOverride: [null]\nlinux: null\n<<: {mode: x}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := configfile.Load(data, configfile.Options{Name: "f"})
		if err != nil {
			checkFaults(t, err)
		}
		if c == nil {
			return
		}
		if errs := c.Validate(""); len(errs) > 0 {
			t.Fatalf("returns a configuration with faults: %v", errs)
		}
		text := marshal(t, c)
		again, notes, err := configfile.Load([]byte(text), configfile.Options{})
		if err != nil || len(notes) > 0 {
			t.Fatalf("does not read what it writes: %v %v\n%s", err, notes, text)
		}
		if marshal(t, again) != text {
			t.Fatalf("reading what was written changes it:\n%s", text)
		}
	})
}

// TestOldFields: fields that kube-proxy's files once had, had elsewhere or wrote in another way get an error that names
// the current form.
func TestOldFields(t *testing.T) {
	_, notes := load(t, []byte(v1+"strictARP: true\nconntrack: {max: 0}\nresourceContainer: /kube-proxy\n"))
	var got []string
	for _, n := range notes {
		got = append(got, n.String())
	}
	want := []string{
		"strictARP: is ignored: there is no such field here: did you mean ipvs.strictARP? (line 3)",
		"conntrack.max: is ignored: Kubernetes 1.16 removed it: use conntrack.maxPerCore and conntrack.min (line 4)",
		"resourceContainer: is ignored: Kubernetes 1.16 removed it: leave it out (line 5)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	_, _, err := configfile.Load([]byte(v1+"conntrack: {tcpEstablishedTimeout: 86400}\n"), configfile.Options{})
	if err == nil || !strings.Contains(err.Error(), "conntrack.tcpEstablishedTimeout: must be a duration such as 30s or 1h30m, got 86400: write 24h0m0s for as many seconds") {
		t.Errorf("error = %v", err)
	}
}
