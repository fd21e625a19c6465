package configfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/configfile"
)

const instance = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyInstanceConfiguration\n"

func loadFiles(texts ...string) (string, error) {
	var files []configfile.File
	for i, text := range texts {
		files = append(files, configfile.File{Name: string(rune('a' + i)), Data: []byte(text)})
	}
	c, _, err := configfile.LoadFiles(files, configfile.Options{})
	if c == nil {
		return "", err
	}
	var got []string
	for _, path := range []string{"hostnameOverride", "nodeIPOverride", "healthzBindAddress", "metricsBindAddress", "api.listen", "mode"} {
		got = append(got, c.Text(path))
	}
	return strings.Join(got, " "), err
}

// TestInstances combines settings of one node with shared settings.
func TestInstances(t *testing.T) {
	const all = instance + `hostnameOverride: node-a
nodeIPOverride: [192.0.2.1]
healthzBindAddress: 192.0.2.1:10256
metricsBindAddress: ""
api: {listen: [tcp://127.0.0.1:1]}
`
	const want = `"node-a" ["192.0.2.1"] "192.0.2.1:10256" "" ["tcp://127.0.0.1:1"] "ipvs"`
	kubeadm := v1 + "mode: ipvs\nbindAddress: 0.0.0.0\nhealthzBindAddress: ''\nmetricsBindAddress: ''\nhostnameOverride: ''\n"
	for name, files := range map[string][]string{
		"two files":            {v2 + "mode: ipvs\n", all},
		"the other way around": {all, v2 + "mode: ipvs\n"},
		"one file":             {v2 + "mode: ipvs\n---\n" + all},
		"two instances":        {v2 + "mode: ipvs\n", instance + "hostnameOverride: node-a\n", all},
		"defaults written out": {v2 + "mode: ipvs\nhealthzBindAddress: 0.0.0.0:10256\nnodeIPOverride: []\n", all},
		"the same twice":       {v2 + "mode: ipvs\nnodeIPOverride: [192.0.2.1]\nmetricsBindAddress: ''\n", all},
		"v1alpha1":             {kubeadm, all},
		"v1alpha1, IPv6":       {v1 + "mode: ipvs\nbindAddress: '::'\n", all},
		"null says nothing":    {v2 + "mode: ipvs\n", all, instance + "hostnameOverride: null\nnodeIPOverride: null\n"},
	} {
		if got, err := loadFiles(files...); err != nil || got != want {
			t.Errorf("%s: got %s, %v\nwant %s", name, got, err, want)
		}
	}
}

// TestInstanceFaults has faults of combined documents, each with its places.
func TestInstanceFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		want  string
	}{
		{"shared against own", []string{v2 + "mode: ipvs\nhostnameOverride: all\n", instance + "hostnameOverride: node-a\n"},
			`b:3:19: hostnameOverride: is "node-a" here, and "all" in a:4:19: keep one of them`},
		{"own against own", []string{v2, instance + "nodeIPOverride: [192.0.2.1]\n", instance + "nodeIPOverride: [192.0.2.2]\n"},
			`c:3:17: nodeIPOverride: is ["192.0.2.2"] here, and ["192.0.2.1"] in b:3:17: keep one of them`},
		{"nowhere is a value", []string{v2 + "metricsBindAddress: ''\n", instance + "metricsBindAddress: 127.0.0.1:1\n"},
			`b:3:21: metricsBindAddress: is "127.0.0.1:1" here, and "" in a:3:21: keep one of them`},
		{"v1alpha1", []string{v1 + "bindAddress: 192.0.2.1\n", instance + "nodeIPOverride: [192.0.2.2]\n"},
			`b:3:17: nodeIPOverride: is ["192.0.2.2"] here, and ["192.0.2.1"] in a:3:14: keep one of them`},
		{"in one file", []string{v2 + "api: {listen: [tcp://127.0.0.1:1]}\n---\n" + instance + "api: {listen: []}\n"},
			`a:7:15: api.listen: is [] here, and ["tcp://127.0.0.1:1"] in a:3:15: keep one of them`},
		{"own values are checked at their place", []string{v2, instance + "nodeIPOverride: [127.0.0.1]\n"},
			"b:3:18: nodeIPOverride[0]: must be an address that other nodes can reach, got 127.0.0.1"},
		{"decoded at its place", []string{v2 + "mode: magic\n", instance + "nodeIPOverride: [host]\nmode: ipvs\n"},
			"a:3:7: mode: must be nftables, iptables, ipvs, ebpf, userspace, kernelspace or empty, got \"magic\"\n" +
				"b:3:18: nodeIPOverride[0]: must be an IP address such as 192.0.2.10, got \"host\"\nb:4:1: mode: there is no such field"},
		{"two shared ones", []string{v1, v2},
			"b:1:1: is a second KubeProxyConfiguration, after the one in a:1:1: keep one; settings of one node belong into a KubeProxyInstanceConfiguration"},
		{"no shared one", []string{instance}, "a: has no KubeProxyConfiguration: give that one, too, in this file or in another one"},
		{"version", []string{v2, strings.Replace(instance, "v1alpha2", "v1alpha1", 1)},
			`b:1:13: apiVersion: must be kubeproxy.config.k8s.io/v1alpha2, got "kubeproxy.config.k8s.io/v1alpha1"`},
	} {
		_, err := loadFiles(tt.files...)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
		} else if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestSoftConflict: with configHardFail: false, a process starts with the defaults of the fields at fault.
func TestSoftConflict(t *testing.T) {
	got, err := loadFiles(v2+"configHardFail: false\nmode: ipvs\nhostnameOverride: all\n", instance+"hostnameOverride: node-a\nhealthzBindAddress: ''\n")
	if err == nil || got != `"" [] "" "127.0.0.1:10249" [] "ipvs"` {
		t.Errorf("got %s, %v", got, err)
	}
	got, err = loadFiles(v2+"configHardFail: false\nmode: ipvs\nnodeIPOverride: [x]\n", instance+"nodeIPOverride: [192.0.2.1]\n")
	if err == nil || got != `"" ["192.0.2.1"] "0.0.0.0:10256" "127.0.0.1:10249" [] "ipvs"` {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestFilesWithOtherDocuments reads files that hold more than the configuration.
func TestFilesWithOtherDocuments(t *testing.T) {
	const kubeadm = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking: {podSubnet: 10.0.0.0/8}\n---\n"
	configMap := func(style, text string) string {
		return "apiVersion: v1\ndata:\n  config.conf: " + style + text + "\n  kubeconfig.conf: |\n    {\nkind: ConfigMap\n"
	}
	literal := strings.ReplaceAll("\n"+v1+"mode: ipvs\nmodes: x", "\n", "\n    ")
	skip := func(text string) (string, string, error) {
		c, notes, err := configfile.Load([]byte(text), configfile.Options{Name: "f", SkipOthers: true})
		if c == nil {
			return "", "", err
		}
		var lines []string
		for _, n := range notes {
			lines = append(lines, n.File+": "+n.String())
		}
		return string(c.Mode), strings.Join(lines, "\n"), err
	}
	for _, tt := range []struct{ name, text, notes, fault string }{
		{name: "kubeadm", text: kubeadm + v1 + "mode: ipvs\n", notes: "f: ClusterConfiguration: is skipped: it is no configuration of the service proxy"},
		{name: "ConfigMap", text: configMap("|", literal), notes: "f: modes: is ignored: there is no such field: did you mean mode? (line 7)"},
		{name: "ConfigMap in JSON", text: `{"apiVersion":"v1","kind":"ConfigMap","data":{"c":"apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: ipvs\n"}}`},
		{name: "fault in a ConfigMap", text: configMap("|-", strings.Replace(literal, "ipvs", "magic", 1)), fault: "f:6: mode: must be "},
		{name: "fault in a quoted text", text: configMap("", `"apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: magic\n"`),
			fault: "f(data.config.conf):3:7: mode: must be "},
		{name: "broken text", text: configMap("|", literal+"\n    x: ["), fault: "f:8: not valid YAML"},
		{name: "ConfigMap of others", text: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n", fault: `f:2:7: kind: must be KubeProxyConfiguration, got "ConfigMap"`},
		{name: "another version", text: kubeadm + "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration\n", fault: "f:5:13: apiVersion: must be "},
	} {
		mode, notes, err := skip(tt.text)
		switch {
		case tt.fault != "":
			if err == nil || !strings.HasPrefix(err.Error(), tt.fault) {
				t.Errorf("%s: got %v, want %s", tt.name, err, tt.fault)
			}
		case err != nil || mode != "ipvs" || notes != tt.notes:
			t.Errorf("%s: got mode %s, notes %s, %v", tt.name, mode, notes, err)
		}
	}
	if _, _, err := configfile.Load([]byte(kubeadm+v1), configfile.Options{Name: "f"}); err == nil {
		t.Error("a process takes documents of other kinds")
	}
}
