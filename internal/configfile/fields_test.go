package configfile_test

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// samples are valid values, none of them a default, for the fields that do not take just any value of their type.
var samples = map[string]any{
	"userspace.policy": "LeastConnections", "userspace.listen": []any{"127.0.0.1:8080=10.96.0.10:80/tcp"},
	"bindAddress":                         "192.0.2.10",
	"clusterCIDR":                         "10.244.0.0/16",
	"detectLocal.clusterCIDRs":            []any{"10.244.0.0/16", "fd00::/48"},
	"detectLocalMode":                     "NodeCIDR",
	"healthzBindAddress":                  "192.0.2.10:1",
	"metricsBindAddress":                  "192.0.2.10:2",
	"adminBindAddress":                    "unix:///run/other.sock",
	"uiBindAddress":                       "127.0.0.1:10270",
	"ipFamilyPolicy":                      "PreferDualStack",
	"ipvs.excludeCIDRs":                   []any{"192.0.2.0/24"},
	"ipvs.scheduler":                      "lc",
	"logging.format":                      "json",
	"logging.vmodule":                     []any{map[string]any{"filePattern": "store", "verbosity": 3}},
	"logging.options.text.infoBufferSize": "64Ki",
	"logging.options.json.infoBufferSize": "1Mi",
	"mode":                                "nftables",
	"nodeIPOverride":                      []any{"192.0.2.10", "2001:db8::1"},
	"nodePortAddresses":                   []any{"localhost", "192.0.2.0/24"},
	"acceptAnnotationsOf":                 []any{"cilium.io"},
	"edge.mode":                           "tcx",
	"edge.frontends":                      []any{"NodePort"},
	"edge.services":                       "all",
	"edge.interfaces":                     []any{"eth0", "eth1.7"},
	"edge.mtu":                            1400,
	"edge.tableSize":                      251,
	"edge.maxSlots":                       65536,
	"services.allowedExternalIPs":         []any{"192.0.2.0/24"},
	"showHiddenMetricsForVersion":         "1.36",
	"winkernel.sourceVip":                 "192.0.2.11",
	"ebpf.cgroupPath":                     "/cgroup",
	"ebpf.meshPorts":                      []any{15001},
	"ebpf.namespaceMap":                   "/sys/fs/bpf/namespaces",
	"api.listen":                          []any{"unix:///run/api.sock"},
	"api.socketMode":                      "0660",
	"api.socketUsers":                     []any{"65532", "switchyard"},
}

// fields yields the path and the type of each field that a file of type t can have.
func fields(t reflect.Type, path string, visit func(path string, t reflect.Type)) {
	walk(t, path, func(path string, f reflect.StructField, _ reflect.Type) {
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		visit(path, typ)
	})
}

// walk is fields for those that also need the field itself, and the struct that has it.
func walk(t reflect.Type, path string, visit func(path string, f reflect.StructField, owner reflect.Type)) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || path == "" && (name == "apiVersion" || name == "kind") {
			continue
		}
		at, typ := name, f.Type
		if path != "" {
			at = path + "." + name
		}
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		p := reflect.PointerTo(typ)
		isValue := p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]())
		if typ.Kind() == reflect.Struct && !isValue {
			walk(typ, at, visit)
		} else {
			visit(at, f, t)
		}
	}
}

// sample returns a value for the field at path; def is its default.
func sample(t *testing.T, path string, typ reflect.Type, def any) any {
	if v, ok := samples[path]; ok {
		return v
	}
	switch {
	case strings.HasSuffix(typ.Name(), "Duration"), strings.HasSuffix(typ.Name(), "Nanoseconds"):
		return "17s"
	case typ.Kind() == reflect.Bool:
		return def != true
	case typ.Kind() == reflect.Int32, typ.Kind() == reflect.Int64, typ.Kind() == reflect.Float32:
		return 7
	case typ.Kind() == reflect.String:
		return "some"
	case typ.Kind() == reflect.Map:
		return map[string]any{"Some": true}
	}
	t.Fatalf("there is no sample for %s of type %v", path, typ)
	return nil
}

// file is a configuration file with the given fields.
func file(t *testing.T, apiVersion string, values map[string]any) []byte {
	t.Helper()
	root := map[string]any{"apiVersion": apiVersion, "kind": "KubeProxyConfiguration"}
	for path, v := range values {
		section := root
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			if section[name] == nil {
				section[name] = map[string]any{}
			}
			section = section[name].(map[string]any)
		}
		section[names[len(names)-1]] = v
	}
	data, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t *testing.T, data []byte) (*config.Config, []config.Note) {
	t.Helper()
	c, notes, err := configfile.Load(data, configfile.Options{})
	if err != nil {
		t.Fatalf("%s\n%v", data, err)
	}
	return c, notes
}

func marshal(t *testing.T, c *config.Config) string {
	t.Helper()
	text, err := configfile.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// at returns the value at path in a YAML file.
func at(t *testing.T, text, path string) any {
	t.Helper()
	v := yamlValue(t, text)
	for name := range strings.SplitSeq(path, ".") {
		v = v.(map[string]any)[name]
	}
	return v
}

func yamlValue(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestEveryOldFieldLands sets each field of v1alpha1 alone, in each mode, and looks whether it arrives in v1alpha2, or is named.
func TestEveryOldFieldLands(t *testing.T) {
	for _, mode := range []string{"", "iptables", "nftables", "ipvs", "kernelspace"} {
		c, _ := load(t, file(t, v1alpha1.APIVersion, map[string]any{"mode": mode}))
		base := marshal(t, c)
		count := 0
		fields(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "", func(path string, typ reflect.Type) {
			count++
			def := path == "iptables.localhostNodePorts" // the only boolean that is true by default
			values := map[string]any{"mode": mode}
			values[path] = sample(t, path, typ, def)
			if path == "mode" {
				values[path] = "userspace"
			}
			c, notes := load(t, file(t, v1alpha1.APIVersion, values))
			named := slices.ContainsFunc(notes, func(n config.Note) bool { return n.Path == path })
			if marshal(t, c) == base && !named {
				t.Errorf("mode %q: %s: %v is lost", mode, path, values[path])
			}
		})
		if count < 60 {
			t.Errorf("only %d fields", count)
		}
	}
}

// TestEveryNewFieldSurvives sets each field of v1alpha2 alone, and expects its value in the written file.
func TestEveryNewFieldSurvives(t *testing.T) {
	base := marshal(t, config.Default())
	fields(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, typ reflect.Type) {
		want := sample(t, path, typ, at(t, base, path))
		c, notes := load(t, file(t, v1alpha2.APIVersion, map[string]any{path: want}))
		text := marshal(t, c)
		if diff := cmp.Diff(want, at(t, text, path)); diff != "" {
			t.Errorf("%s does not survive (-want +got):\n%s", path, diff)
		}
		if text == base || len(notes) > 0 {
			t.Errorf("%s: the sample changes nothing, or has notes: %v", path, notes)
		}
	})
}

// TestMovedFields follows the tables of KEP-784: each row sets a field of v1alpha1 and names where it is in v1alpha2.
func TestMovedFields(t *testing.T) {
	tests := []struct {
		mode, from string
		value      any
		to         string
		want       any
	}{
		{"", "conntrack.maxPerCore", 1, "linux.conntrack.maxPerCore", 1},
		{"", "oomScoreAdj", 5, "linux.oomScoreAdj", 5},
		{"iptables", "iptables.masqueradeAll", true, "linux.masqueradeAll", true},
		{"ipvs", "iptables.masqueradeAll", true, "linux.masqueradeAll", true},
		{"nftables", "iptables.masqueradeAll", true, "linux.masqueradeAll", false},
		{"nftables", "nftables.masqueradeAll", true, "linux.masqueradeAll", true},
		{"iptables", "iptables.syncPeriod", "9s", "syncPeriod", "9s"},
		{"nftables", "nftables.syncPeriod", "9s", "syncPeriod", "9s"},
		{"ipvs", "ipvs.syncPeriod", "9s", "syncPeriod", "9s"},
		{"iptables", "iptables.minSyncPeriod", "9s", "minSyncPeriod", "9s"},
		{"nftables", "nftables.minSyncPeriod", "9s", "minSyncPeriod", "9s"},
		{"ipvs", "ipvs.minSyncPeriod", "9s", "minSyncPeriod", "9s"},
		{"ipvs", "ipvs.minSyncPeriod", nil, "minSyncPeriod", "0s"},
		{"", "clusterCIDR", "10.0.0.0/8,fd00::/8", "detectLocal.clusterCIDRs", []any{"10.0.0.0/8", "fd00::/8"}},
		{"ipvs", "iptables.masqueradeBit", 3, "ipvs.masqueradeBit", 3},
		{"", "windowsRunAsService", true, "windows.runAsService", true},
		{"", "iptables.localhostNodePorts", nil, "iptables.localhostNodePorts", true},
		{"", "bindAddressHardFail", nil, "bindAddressHardFail", false},
		{"", "bindAddress", "192.0.2.1", "nodeIPOverride", []any{"192.0.2.1"}},
		{"", "bindAddress", "2001:db8::1", "metricsBindAddress", "[::1]:10249"},
		{"", "bindAddress", "::", "healthzBindAddress", "[::]:10256"},
		{"", "healthzBindAddress", "::1", "healthzBindAddress", "[::1]:10256"},
		{"", "nodePortAddresses", []any{"primary"}, "nodePortAddresses", []any{"primary"}},
		{"", "logging.flushFrequency", 2000000000, "logging.flushFrequency", "2s"},
	}
	for _, tt := range tests {
		c, _ := load(t, file(t, v1alpha1.APIVersion, map[string]any{"mode": tt.mode, tt.from: tt.value}))
		if got := at(t, marshal(t, c), tt.to); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("mode %q, %s: %v: %s = %v, want %v", tt.mode, tt.from, tt.value, tt.to, got, tt.want)
		}
	}
}

// TestNewDefaults has the defaults that v1alpha2 does not share with v1alpha1.
func TestNewDefaults(t *testing.T) {
	c, _ := load(t, file(t, v1alpha2.APIVersion, nil))
	old, _ := load(t, file(t, v1alpha1.APIVersion, nil))
	newText, oldText := marshal(t, c), marshal(t, old)
	var different []string
	fields(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, _ reflect.Type) {
		if !reflect.DeepEqual(at(t, newText, path), at(t, oldText, path)) {
			different = append(different, path)
		}
	})
	if want := []string{"bindAddressHardFail", "allowModeFallback", "services.nodeExternalIPs", "iptables.localhostNodePorts"}; !slices.Equal(different, want) {
		t.Errorf("defaults of %v differ, want %v", different, want)
	}
	if !c.BindAddressHardFail || c.IPTables.LocalhostNodePorts || c.Services.NodeExternalIPs || !c.ConfigHardFail || c.IPVS.MasqueradeBit != 14 {
		t.Error("the defaults are not those of KEP-784")
	}
}

// TestDefaultsOfV1alpha1 has those that an operator relies on, as kube-proxy documents them.
func TestDefaultsOfV1alpha1(t *testing.T) {
	want := map[string]any{
		"bindAddressHardFail": false, "healthzBindAddress": "0.0.0.0:10256", "metricsBindAddress": "127.0.0.1:10249",
		"clientConnection.contentType": "application/vnd.kubernetes.protobuf", "clientConnection.qps": 5, "clientConnection.burst": 10,
		"configSyncPeriod": "15m0s", "syncPeriod": "30s", "minSyncPeriod": "1s", "linux.oomScoreAdj": -999,
		"linux.conntrack.maxPerCore": 32768, "linux.conntrack.min": 131072,
		"linux.conntrack.tcpEstablishedTimeout": "24h0m0s", "linux.conntrack.tcpCloseWaitTimeout": "1h0m0s",
		"nftables.masqueradeBit": 14, "iptables.masqueradeBit": 14, "ipvs.masqueradeBit": 14,
		"logging.format": "text", "logging.flushFrequency": "5s", "winkernel.rootHnsEndpointName": "cbr0",
	}
	c, _ := load(t, file(t, v1alpha1.APIVersion, nil))
	text := marshal(t, c)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got := at(t, text, path); !reflect.DeepEqual(got, want[path]) {
			t.Errorf("%s = %v, want %v", path, got, want[path])
		}
	}
}
