package test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// deployments are all ways to deploy.
func deployments(t *testing.T) map[string]objects {
	return map[string]objects{
		"kustomize/base":       kustomize(t, "base"),
		"kustomize/example":    kustomize(t, "example"),
		"helm":                 rendered(t, nil),
		"helm, other settings": rendered(t, otherSettings),
		"helm, restricted":     rendered(t, restricted),
		"kustomize/restricted": kustomize(t, restrictedDir),
	}
}

// restricted has the chart be what the component of Kustomize makes of the base.
var restricted = values{
	"capabilities":   []any{"NET_ADMIN"},
	"kernelSettings": values{"enabled": false},
	"seccompProfile": values{"type": "Localhost", "localhostProfile": "switchyard.json"},
}

// restrictedDir is the base with the component, as seen from deploy/kustomize.
const restrictedDir = "../test/testdata/restricted"

var otherSettings = values{
	"image":            values{"repository": "registry.example.org/switchyard", "tag": "v1.2.3", "pullPolicy": "Always"},
	"imagePullSecrets": []any{values{"name": "registry"}},
	"config": values{
		"healthzBindAddress": "[::]:11256", "metricsBindAddress": "[::]:11249",
		"linux":   values{"conntrack": values{"min": 1048576}},
		"logging": values{"verbosity": 2}, "clientConnection": values{"qps": 50},
	},
	"verbosity":      4,
	"podLabels":      values{"team": "network"},
	"podAnnotations": values{"example.org/note": "x"},
	"seLinuxOptions": values{"type": "spc_t"},
	"kernelSettings": values{"enabled": false},
	"serviceMonitor": values{"enabled": true, "labels": values{"release": "prometheus"}},
}

// TestChartAndBaseAreEqual compares what the chart and the base make, but for Helm's own labels.
func TestChartAndBaseAreEqual(t *testing.T) {
	for title, c := range map[string]struct{ helm, kustomize objects }{
		"base":       {rendered(t, nil), kustomize(t, "base")},
		"restricted": {rendered(t, restricted), kustomize(t, restrictedDir)},
	} {
		for _, o := range c.helm {
			labels := o.GetLabels()
			for _, own := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
				if labels[own] == "" {
					t.Errorf("%s: %s %s lacks the label %s", title, o.GetKind(), o.GetName(), own)
				}
				delete(labels, own)
			}
			o.SetLabels(labels)
		}
		for _, all := range []objects{c.helm, c.kustomize} {
			parseConfigMap(t, all["ConfigMap switchyard"])
		}
		if diff := cmp.Diff(c.kustomize, c.helm); diff != "" {
			t.Errorf("%s: Kustomize (-) and Helm (+) differ:\n%s", title, diff)
		}
	}
}

// parseConfigMap replaces the text of files by what it means.
func parseConfigMap(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	parsed := make(map[string]any)
	for name, text := range data {
		var v any
		if err := sigsyaml.UnmarshalStrict([]byte(text), &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		parsed[name] = v
	}
	o.Object["data"] = parsed
}

// TestAccepted decodes every object as an API server does that refuses unknown fields.
func TestAccepted(t *testing.T) {
	if err := monitoringv1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	deployments := deployments(t)
	maps.Copy(deployments, apart(t))
	deployments["helm, PodMonitor"] = rendered(t, podMonitored)
	deployments["helm, edge"], deployments["kustomize/edge"] = rendered(t, edged), kustomize(t, edgeDir)
	deployments["kustomize/relaymonitoring"] = kustomize(t, relayMonitoredDir)
	for _, path := range []string{"namespaces.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "kubeadm", path))
		if err != nil {
			t.Fatal(err)
		}
		deployments["kubeadm/"+path] = read(t, text)
	}
	for title, all := range deployments {
		for name, o := range all {
			text, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := strict.Decode(text, nil, nil); err != nil {
				t.Errorf("%s: %s: %v", title, name, err)
			}
		}
	}
}

// into converts an object to its type.
func into[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	if o == nil {
		t.Fatalf("there is no such object for a %T", *new(T))
	}
	v := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestConfiguration loads the configuration as the program does, and holds the pod against it.
func TestConfiguration(t *testing.T) {
	for title, all := range deployments(t) {
		t.Run(title, func(t *testing.T) {
			data := into[corev1.ConfigMap](t, all["ConfigMap switchyard"]).Data
			c, notes, err := configfile.Load([]byte(data["config.yaml"]), configfile.Options{Platform: "linux"})
			if err != nil || len(notes) > 0 {
				t.Fatalf("config.yaml: %v %v", notes, err)
			}
			kubeconfig, err := clientcmd.Load([]byte(data["kubeconfig.yaml"]))
			if err != nil {
				t.Fatal(err)
			}
			if err := clientcmd.ConfirmUsable(*kubeconfig, ""); err != nil && !strings.Contains(err.Error(), "serviceaccount") {
				t.Errorf("kubeconfig.yaml: %v", err) // the service account's files are not here
			}
			pod := into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template.Spec
			checkPorts(t, &pod, c)
			checkFiles(t, &pod, c.ClientConnection.Kubeconfig, data)
			if pod.PriorityClassName != "system-node-critical" || c.Linux.OOMScoreAdj != -997 {
				t.Errorf("the kubelet gives -997 to system-node-critical: have %s and %d", pod.PriorityClassName, c.Linux.OOMScoreAdj)
			}
		})
	}
}

// checkPorts checks that probes and Prometheus ask where the program answers.
func checkPorts(t *testing.T, pod *corev1.PodSpec, c *config.Config) {
	t.Helper()
	main := &pod.Containers[0]
	ports := make(map[string]int32)
	for _, p := range main.Ports {
		ports[p.Name] = p.ContainerPort
	}
	want := map[string]int32{"healthz": int32(c.HealthzBindAddress.Port()), "metrics": int32(c.MetricsBindAddress.Port())}
	if !maps.Equal(ports, want) {
		t.Errorf("the container has the ports %v, the configuration %v", ports, want)
	}
	if !c.HealthzBindAddress.Addr().IsUnspecified() || !pod.HostNetwork {
		t.Errorf("the kubelet asks at the node's address, but %v answers", c.HealthzBindAddress)
	}
	for path, probe := range map[string]*corev1.Probe{"/livez": main.LivenessProbe, "/healthz": main.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "healthz" {
			t.Errorf("%s is not asked: %+v", path, probe)
		}
	}
}

// checkFiles checks that all files that arguments and configuration name are there, and that variables have values.
func checkFiles(t *testing.T, pod *corev1.PodSpec, kubeconfig string, data map[string]string) {
	t.Helper()
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		files := []string{kubeconfig}
		for _, arg := range c.Args {
			if path, ok := strings.CutPrefix(arg, "--config="); ok {
				files = append(files, path)
			}
			if strings.Contains(arg, "$(") && (arg != "--hostname-override=$(NODE_NAME)" || len(c.Env) == 0 ||
				c.Env[0].Name != "NODE_NAME" || c.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName") {
				t.Errorf("%s: %s has no value", c.Name, arg)
			}
		}
		if len(files) != 2 {
			t.Errorf("%s has no --config: %v", c.Name, c.Args)
		}
		for _, file := range files {
			at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(file) && m.SubPath == "" })
			if at < 0 {
				t.Errorf("%s: nothing is mounted at %s", c.Name, filepath.Dir(file))
				continue
			}
			v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == c.VolumeMounts[at].Name })]
			if v.ConfigMap == nil || v.ConfigMap.Name != "switchyard" || data[filepath.Base(file)] == "" {
				t.Errorf("%s: %s is not in the ConfigMap", c.Name, file)
			}
		}
	}
}

// TestPrivileges holds the containers to what they need.
func TestPrivileges(t *testing.T) {
	for title, all := range deployments(t) {
		pod := into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template.Spec
		s := pod.Containers[0].SecurityContext
		capabilities, seccomp, isRestricted := []corev1.Capability{"NET_ADMIN", "NET_RAW"}, corev1.SeccompProfileTypeRuntimeDefault, strings.Contains(title, "restricted")
		if isRestricted {
			capabilities, seccomp = capabilities[:1], corev1.SeccompProfileTypeLocalhost
			checkLocalhost(t, title, &pod)
		}
		if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || *s.RunAsUser != 0 ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			!slices.Equal(s.Capabilities.Add, capabilities) {
			t.Errorf("%s: the container has %+v", title, s)
		}
		if pod.SecurityContext.SeccompProfile.Type != seccomp || pod.HostPID || pod.HostIPC {
			t.Errorf("%s: the pod has %+v", title, pod.SecurityContext)
		}
		for _, c := range pod.InitContainers {
			if !slices.Contains(c.Args, "--init-only") {
				t.Errorf("%s: a privileged container runs %v", title, c.Args)
			}
		}
		if want := title != "helm, other settings" && !isRestricted; want != (len(pod.InitContainers) == 1) {
			t.Errorf("%s: there are %d init containers", title, len(pod.InitContainers))
		}
	}
}

// TestModeEBPF: the container that programs the node gets what socket hooks take, in that mode only, and no other container does.
func TestModeEBPF(t *testing.T) {
	more := []corev1.Capability{"BPF", "PERFMON", "DAC_READ_SEARCH"}
	for title, tt := range map[string]struct {
		values values
		want   []corev1.Capability
		args   []string
	}{
		"one container": {values{"config": values{"mode": "ebpf"}}, append([]corev1.Capability{"NET_ADMIN", "NET_RAW"}, more...), []string{"proxy"}},
		"restricted": {values{"config": values{"mode": "ebpf"}, "capabilities": []any{"NET_ADMIN", "BPF"}},
			append([]corev1.Capability{"NET_ADMIN"}, more...), []string{"proxy"}},
		"split": {values{"config": values{"mode": "ebpf"}, "split": values{"enabled": true}},
			append([]corev1.Capability{"NET_ADMIN", "NET_RAW"}, more...), []string{"apply", "ebpf"}},
		"split, nftables": {values{"split": values{"enabled": true}}, []corev1.Capability{"NET_ADMIN", "NET_RAW"}, []string{"apply", "nftables"}},
	} {
		pod := into[appsv1.DaemonSet](t, rendered(t, tt.values)["DaemonSet switchyard"]).Spec.Template.Spec
		for _, c := range pod.Containers {
			switch programs := c.Name != "serve"; {
			case programs && !slices.Equal(c.SecurityContext.Capabilities.Add, tt.want):
				t.Errorf("%s: %s has %v, want %v", title, c.Name, c.SecurityContext.Capabilities.Add, tt.want)
			case programs && !slices.Equal(c.Args[:len(tt.args)], tt.args):
				t.Errorf("%s: %s runs %v", title, c.Name, c.Args)
			case !programs && len(c.SecurityContext.Capabilities.Add) > 0:
				t.Errorf("%s: %s has %v", title, c.Name, c.SecurityContext.Capabilities.Add)
			}
		}
	}
}

// checkLocalhost checks that the pod has the profile in deploy/seccomp, and nothing of the host.
func checkLocalhost(t *testing.T, title string, pod *corev1.PodSpec) {
	t.Helper()
	name := pod.SecurityContext.SeccompProfile.LocalhostProfile
	if name == nil {
		t.Fatalf("%s: the profile of seccomp has no name", title)
	}
	if _, err := os.Stat(filepath.Join("..", "seccomp", *name)); err != nil {
		t.Errorf("%s: %v", title, err)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s: the pod has %s of the host", title, v.HostPath.Path)
		}
	}
}

func TestOtherSettings(t *testing.T) {
	all := rendered(t, otherSettings)
	ds := into[appsv1.DaemonSet](t, all["DaemonSet switchyard"])
	pod := ds.Spec.Template.Spec
	c := pod.Containers[0]
	got := fmt.Sprint(c.Image, " ", c.ImagePullPolicy, " ", pod.ImagePullSecrets, " ", c.Args, " ", c.SecurityContext.SELinuxOptions.Type, " ",
		ds.Spec.Template.Labels["team"], " ", ds.Spec.Template.Annotations, " ", all["ServiceMonitor switchyard"].GetLabels()["release"])
	want := "registry.example.org/switchyard:v1.2.3 Always [{registry}] [proxy --config=/etc/switchyard/config.yaml " +
		"--hostname-override=$(NODE_NAME) --v=4] spc_t network map[example.org/note:x] prometheus"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	file := into[corev1.ConfigMap](t, all["ConfigMap switchyard"]).Data["config.yaml"]
	conf, _, err := configfile.Load([]byte(file), configfile.Options{Platform: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	if conf.Linux.Conntrack.Min != 1048576 || conf.Linux.OOMScoreAdj != -997 || conf.ClientConnection.QPS != 50 ||
		conf.ClientConnection.Kubeconfig != "/etc/switchyard/kubeconfig.yaml" || conf.MetricsBindAddress != netip.MustParseAddrPort("[::]:11249") {
		t.Errorf("settings are lost:\n%s", file)
	}
	port, _, _ := unstructured.NestedSlice(all["Service switchyard"].Object, "spec", "ports")
	if p := port[0].(map[string]any)["port"]; fmt.Sprint(p) != strconv.Itoa(11249) {
		t.Errorf("the Service has port %v", p)
	}
}

func TestChartRefuses(t *testing.T) {
	for want, v := range map[string]values{
		"apiServer is missing":                                           {},
		"does not match pattern":                                         {"apiServer": "10.0.0.1:6443"},
		"additional properties 'hostNetwork' not allowed":                {"apiServer": "https://a:6443", "hostNetwork": true},
		"additional properties 'clusterCIDR' not allowed":                {"apiServer": "https://a:6443", "config": values{"clusterCIDR": "10.0.0.0/8"}},
		"serviceMonitor.enabled needs metrics that Prometheus can reach": {"apiServer": "https://a:6443", "serviceMonitor": values{"enabled": true}},
		"podMonitor.enabled needs metrics that Prometheus can reach":     {"apiServer": "https://a:6443", "podMonitor": values{"enabled": true}},
		"set relay.metricsBindAddress": {
			"apiServer": "https://a:6443", "config": reachable, "podMonitor": values{"enabled": true}, "relay": values{"enabled": true},
		},
		"would have each pod twice": {
			"apiServer": "https://a:6443", "config": reachable, "podMonitor": values{"enabled": true}, "serviceMonitor": values{"enabled": true},
		},
		"the alerts look for the job kube-proxy": {
			"apiServer": "https://a:6443", "config": reachable, "prometheusRule": values{"enabled": true},
			"serviceMonitor": values{"enabled": true, "job": "proxies"},
		},
	} {
		if _, err := helm(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", v, err, want)
		}
	}
}

// TestSchemaKnowsConfiguration compares the chart's schema with the type of the file.
func TestSchemaKnowsConfiguration(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "helm", "switchyard", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				Properties map[string]any
			}
		}
	}
	if err := sigsyaml.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	fields := []string{}
	for f := range reflect.TypeFor[v1alpha2.KubeProxyConfiguration]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "apiVersion" && name != "kind" { // the chart's own
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(schema.Properties.Config.Properties))); diff != "" {
		t.Errorf("the file (-) and the schema (+) have other fields:\n%s", diff)
	}
}
