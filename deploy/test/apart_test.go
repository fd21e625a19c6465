package test

import (
	"cmp"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// relayedDir is the split pod with the component that has it ask a relay, as seen from deploy/kustomize.
const relayedDir = "../test/testdata/relayed"

// splitValues make the chart what kustomize/split is.
func splitValues() values {
	conntrack := values{"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
	return values{
		"split": values{"enabled": true}, "kernelSettings": values{"enabled": false}, "capabilities": []any{"NET_ADMIN"},
		"config": values{
			"detectLocalMode": "", "detectLocal": values{"clusterCIDRs": []any{"10.244.0.0/16"}},
			"linux": values{"oomScoreAdj": -997, "conntrack": conntrack},
		},
	}
}

// relayedValues make the chart what kustomize/relayed is, but for the relays of the component.
func relayedValues() values {
	v := splitValues()
	v["split"] = values{"enabled": true, "relays": []any{"dns:///relay.example:8443"}}
	return v
}

// chartRelay returns the chart's objects for its relays, and no others.
func chartRelay(t *testing.T) objects {
	v := splitValues()
	v["relay"] = values{"enabled": true}
	all := rendered(t, v)
	maps.DeleteFunc(all, func(name string, _ *unstructured.Unstructured) bool {
		return !strings.HasSuffix(name, " switchyard-relay")
	})
	return all
}

// apart are the ways to deploy the program in several processes.
func apart(t *testing.T) map[string]objects {
	return map[string]objects{
		"kustomize/relay":   kustomize(t, "relay"),
		"kustomize/split":   kustomize(t, "split"),
		"kustomize/relayed": kustomize(t, relayedDir),
		"helm, split":       rendered(t, splitValues()),
		"helm, relay":       chartRelay(t),
		"helm, relayed":     rendered(t, relayedValues()),
	}
}

// podOf returns the pods of the only workload.
func podOf(t *testing.T, all objects) *corev1.PodSpec {
	t.Helper()
	if o := all["Deployment switchyard-relay"]; o != nil {
		return &into[appsv1.Deployment](t, o).Spec.Template.Spec
	}
	return &into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template.Spec
}

// TestApartRoles compares the roles with what is asked for. `serve` reports nothing, and below a relay nobody asks.
func TestApartRoles(t *testing.T) {
	for title, c := range map[string]struct {
		name     string
		allNodes bool
	}{"kustomize/relay": {"switchyard-relay", true}, "kustomize/split": {"switchyard", false}, "helm, split": {"switchyard", false},
		"helm, relay": {"switchyard-relay", true}} {
		all := apart(t)[title]
		want, has := requested(t, c.allNodes), granted(into[rbacv1.ClusterRole](t, all["ClusterRole "+c.name]))
		if missing, extra := less(want, has), less(has, want); len(missing)+len(extra) > 0 {
			t.Errorf("%s: the role lacks %v, and permits %v, which nobody asks for", title, missing, extra)
		}
		checkBinding(t, into[rbacv1.ClusterRoleBinding](t, all["ClusterRoleBinding "+c.name]), c.name)
		if got := podOf(t, all).ServiceAccountName; got != c.name || all["ServiceAccount "+c.name] == nil {
			t.Errorf("%s: the pods have the service account %q", title, got)
		}
	}
	for title, all := range map[string]objects{"kustomize/relayed": kustomize(t, relayedDir), "helm, relayed": rendered(t, relayedValues())} {
		for name := range all {
			if name != "DaemonSet switchyard" && name != "ConfigMap switchyard" {
				t.Errorf("%s has %s, which nobody needs", title, name)
			}
		}
	}
}

// TestApartPrivileges holds each container to what it needs: NET_ADMIN and no credential, or a credential and no capability.
func TestApartPrivileges(t *testing.T) {
	for title, all := range apart(t) {
		pod := podOf(t, all)
		if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || pod.HostPID || pod.HostIPC || len(pod.InitContainers) > 0 {
			t.Errorf("%s: the pod has %+v, and %d init containers", title, pod.SecurityContext, len(pod.InitContainers))
		}
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				t.Errorf("%s: the pod has %s of the host", title, v.HostPath.Path)
			}
		}
		for _, c := range pod.Containers {
			s, applies := c.SecurityContext, c.Args[0] == "apply"
			if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %s has %+v", title, c.Name, s)
			}
			var mounted []string
			for _, m := range c.VolumeMounts {
				mounted = append(mounted, m.Name)
				if writable := !applies && m.MountPath == "/run/switchyard"; m.ReadOnly == writable {
					t.Errorf("%s: %s has %s, read-only: %v", title, c.Name, m.MountPath, m.ReadOnly)
				}
			}
			user := pod.SecurityContext.RunAsUser
			if s.RunAsUser != nil {
				user = s.RunAsUser
			}
			if applies {
				if *user != 0 || !slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) || !slices.Equal(mounted, []string{"api", "config"}) {
					t.Errorf("%s: %s is user %d, has %v and the volumes %v", title, c.Name, *user, s.Capabilities.Add, mounted)
				}
			} else if *user == 0 || len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: %s is user %d, has %v", title, c.Name, *user, s.Capabilities.Add)
			}
		}
		// containerd does not start a pod with a group and without a user. The tests of the pods show it.
		if s := pod.SecurityContext; s.RunAsGroup != nil && s.RunAsUser == nil {
			t.Errorf("%s: the pod has group %d and no user", title, *s.RunAsGroup)
		}
		// A token that is mounted by itself is in all containers.
		if automatic := pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken; automatic != (len(pod.Containers) == 1) {
			t.Errorf("%s: the token is mounted into all containers: %v", title, automatic)
		}
	}
}

// TestApartReferencesMatch checks that flags, ports, probes, volumes and files name each other.
func TestApartReferencesMatch(t *testing.T) {
	for title, all := range apart(t) {
		t.Run(title, func(t *testing.T) {
			pod := podOf(t, all)
			ports := make(map[int32]string)
			for _, c := range pod.Containers {
				checkFlags(t, all, pod, &c)
				for _, p := range c.Ports {
					if other := ports[p.ContainerPort]; other != "" {
						t.Errorf("%s and %s have the port %d of the host", other, c.Name, p.ContainerPort)
					}
					ports[p.ContainerPort] = c.Name
				}
			}
			if !pod.HostNetwork {
				t.Error("the pod is not in the network of the host")
			}
		})
	}
}

// checkFlags checks what the flags of a container name.
func checkFlags(t *testing.T, all objects, pod *corev1.PodSpec, c *corev1.Container) {
	t.Helper()
	ports := make(map[int32]bool)
	for _, arg := range c.Args {
		flag, value, _ := strings.Cut(arg, "=")
		switch flag {
		case "--listen", "--api", "--relay":
			value = strings.TrimPrefix(strings.TrimPrefix(value, "unix://"), "tcp://")
		case "--healthz-bind-address":
			checkProbes(t, c, netip.MustParseAddrPort(value))
		}
		if address, err := netip.ParseAddrPort(value); err == nil {
			ports[int32(address.Port())] = true
		}
		if strings.HasPrefix(value, "$(") {
			checkVariable(t, all, c, strings.Trim(value, "$()"))
		}
		if filepath.IsAbs(value) {
			checkMounted(t, all, pod, c, value)
		}
	}
	for _, p := range c.Ports {
		if !ports[p.ContainerPort] {
			t.Errorf("%s: nothing listens on port %d", c.Name, p.ContainerPort)
		}
		delete(ports, p.ContainerPort)
	}
	if len(ports) > 0 {
		t.Errorf("%s: the ports %v are not declared", c.Name, ports)
	}
}

// checkProbes checks that the kubelet asks where the container answers.
func checkProbes(t *testing.T, c *corev1.Container, address netip.AddrPort) {
	t.Helper()
	host := ""
	if !address.Addr().IsUnspecified() {
		host = address.Addr().String()
	}
	for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/healthz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Host != host {
			t.Fatalf("%s: %s is not asked at %v: %+v", c.Name, path, address, probe)
		}
		at := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.String() })
		if at < 0 || c.Ports[at].ContainerPort != int32(address.Port()) {
			t.Errorf("%s: %s is asked at port %v, and %v answers", c.Name, path, probe.HTTPGet.Port.String(), address)
		}
	}
}

// checkVariable checks that a variable has a value.
func checkVariable(t *testing.T, all objects, c *corev1.Container, name string) {
	t.Helper()
	at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if at < 0 {
		t.Errorf("%s: %s has no value", c.Name, name)
		return
	}
	from := c.Env[at].ValueFrom
	switch ref := from.ConfigMapKeyRef; {
	case from.FieldRef != nil && from.FieldRef.FieldPath == "spec.nodeName" && name == "NODE_NAME":
	case ref != nil && name == "CLUSTER_CIDR":
		value := into[corev1.ConfigMap](t, all["ConfigMap "+ref.Name]).Data[ref.Key]
		if _, err := netip.ParsePrefix(value); err != nil {
			t.Errorf("%s: %s in ConfigMap %s: %v", c.Name, ref.Key, ref.Name, err)
		}
	default:
		t.Errorf("%s: %s is from %+v", c.Name, name, from)
	}
}

// checkMounted checks that a file is in a volume of the container.
func checkMounted(t *testing.T, all objects, pod *corev1.PodSpec, c *corev1.Container, file string) {
	t.Helper()
	at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(file) && m.SubPath == "" })
	if at < 0 {
		t.Errorf("%s: nothing is mounted at %s", c.Name, filepath.Dir(file))
		return
	}
	v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == c.VolumeMounts[at].Name })]
	switch {
	case v.EmptyDir != nil:
	case v.Secret != nil:
		// Every container has the group of the files.
		if mode := *v.Secret.DefaultMode; mode != 0o440 || pod.SecurityContext.FSGroup == nil {
			t.Errorf("%s: %s has the permissions %s", c.Name, file, strconv.FormatInt(int64(mode), 8))
		}
		if name := filepath.Base(file); !slices.Contains([]string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, "ca.crt"}, name) {
			t.Errorf("%s: %s is not in a Secret of the type kubernetes.io/tls", c.Name, name)
		}
	case v.ConfigMap != nil:
		text := into[corev1.ConfigMap](t, all["ConfigMap "+v.ConfigMap.Name]).Data[filepath.Base(file)]
		if filepath.Base(file) == "config.yaml" {
			checkAPIServer(t, all, pod, c, settings(t, all))
			return
		}
		if _, err := clientcmd.Load([]byte(text)); err != nil || text == "" {
			t.Errorf("%s: %s: %v", c.Name, file, err)
		}
	default:
		t.Errorf("%s: %s is in %+v", c.Name, file, v)
	}
}

// settings returns the configuration of the containers of a node, or of a relay.
func settings(t *testing.T, all objects) *config.Config {
	t.Helper()
	text := into[corev1.ConfigMap](t, cmp.Or(all["ConfigMap switchyard"], all["ConfigMap switchyard-relay"])).Data["config.yaml"]
	c, notes, err := configfile.Load([]byte(text), configfile.Options{Platform: "linux"})
	if err != nil || len(notes)+len(c.WithoutEffect()) > 0 {
		t.Fatalf("config.yaml: %v, %v, without effect %v", err, notes, c.WithoutEffect())
	}
	return c
}

// checkAPIServer checks that a container that asks the API server has the kubeconfig that the configuration names.
func checkAPIServer(t *testing.T, all objects, pod *corev1.PodSpec, c *corev1.Container, settings *config.Config) {
	t.Helper()
	if c.Args[0] == "serve" && !slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--relay=") }) {
		checkMounted(t, all, pod, c, settings.ClientConnection.Kubeconfig)
	}
}

// TestSplitSame checks that both containers of a node, and its relay, mean the same pods, and the same socket.
func TestSplitSame(t *testing.T) {
	var pods []string
	for _, all := range apart(t) {
		for _, name := range []string{"ConfigMap switchyard", "ConfigMap switchyard-relay"} {
			if o := all[name]; o != nil {
				if cidr := into[corev1.ConfigMap](t, o).Data["cluster-cidr"]; cidr != "" {
					pods = append(pods, cidr)
				} else {
					pods = append(pods, settings(t, all).DetectLocal.ClusterCIDRs[0].String())
				}
			}
		}
		for _, c := range podOf(t, all).Containers {
			if !slices.Contains(c.Args, "--cluster-cidr=$(CLUSTER_CIDR)") && !slices.Contains(c.Args, "--config=/etc/switchyard/config.yaml") {
				t.Errorf("%s does not know the addresses of pods: %v", c.Name, c.Args)
			}
			if c.Name != "relay" && !slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasSuffix(a, "=unix:///run/switchyard/api.sock") }) {
				t.Errorf("%s does not name the socket: %v", c.Name, c.Args)
			}
		}
	}
	if len(pods) != 6 || len(slices.Compact(pods)) != 1 {
		t.Errorf("the addresses of pods are %v", pods)
	}
}

// TestRelayIsReplaced checks what keeps a relay there while hosts go and versions change.
func TestRelayIsReplaced(t *testing.T) {
	for title, all := range map[string]objects{"kustomize/relay": kustomize(t, "relay"), "helm, relay": chartRelay(t)} {
		t.Run(title, func(t *testing.T) { checkReplacement(t, all) })
	}
}

func checkReplacement(t *testing.T, all objects) {
	t.Helper()
	d := into[appsv1.Deployment](t, all["Deployment switchyard-relay"])
	budget := into[policyv1.PodDisruptionBudget](t, all["PodDisruptionBudget switchyard-relay"])
	service := into[corev1.Service](t, all["Service switchyard-relay"])
	labels := d.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"Deployment": d.Spec.Selector.MatchLabels, "PodDisruptionBudget": budget.Spec.Selector.MatchLabels, "Service": service.Spec.Selector,
	} {
		if diff := gocmp.Diff(labels, selector); diff != "" {
			t.Errorf("the %s does not select the relays (-):\n%s", what, diff)
		}
	}
	nodes := into[appsv1.DaemonSet](t, kustomize(t, "base")["DaemonSet switchyard"]).Spec.Template.Labels
	if gocmp.Equal(labels, nodes) {
		t.Errorf("relays have the labels of the pods that program nodes: %v", labels)
	}
	if *d.Spec.Replicas < 2 || *budget.Spec.MaxUnavailable != intstr.FromInt32(1) {
		t.Errorf("%d relays, and %v may go", *d.Spec.Replicas, budget.Spec.MaxUnavailable)
	}
	update := d.Spec.Strategy.RollingUpdate
	if *update.MaxSurge != intstr.FromInt32(0) || *update.MaxUnavailable != intstr.FromInt32(1) {
		t.Errorf("two relays on one host want the same port: %+v", update)
	}
	if p := service.Spec.Ports[0]; p.TargetPort.String() != d.Spec.Template.Spec.Containers[0].Ports[0].Name || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the Service has %+v", service.Spec)
	}
}

// TestRelayValues: the chart's values, which are checked, set what relays need in addition to other nodes.
func TestRelayValues(t *testing.T) {
	with := func(v values) values { return values{"apiServer": placeholders["apiServer"], "relay": v} }
	for want, v := range map[string]values{
		"minimum":                   with(values{"enabled": true, "replicas": 0}),
		"listen":                    with(values{"enabled": true, "listen": "8443"}),
		"unknown":                   with(values{"enabled": true, "port": 8443}),
		"relays":                    {"apiServer": placeholders["apiServer"], "split": values{"enabled": true, "relays": []any{"relay.example:8443"}}},
		"set split.enabled to true": {"apiServer": placeholders["apiServer"], "split": values{"relays": []any{"dns:///relay.example:8443"}}},
		"apiServer is missing":      {"relay": values{"enabled": true}, "split": values{"enabled": true, "relays": []any{"dns:///relay.example:8443"}}},
	} {
		if _, err := helm(v); err == nil || want != "unknown" && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error about %s", v, err, want)
		}
	}
	v := relayedValues()
	if text, err := helm(v); err != nil || strings.Contains(string(text), "api-server.example") {
		t.Errorf("nodes that ask relays need the API server: %v", err)
	}
	v["relay"] = values{"enabled": true, "listen": "[::]:9443", "secret": "own", "resources": values{"limits": values{"memory": "4Gi"}}}
	all := rendered(t, v)
	d := into[appsv1.Deployment](t, all["Deployment switchyard-relay"]).Spec.Template.Spec
	c := d.Containers[0]
	if !slices.Contains(c.Args, "--listen=tcp://[::]:9443") || c.Ports[0].ContainerPort != 9443 || d.Volumes[1].Secret.SecretName != "own" || c.Env[0].Value != "2457MiB" ||
		into[corev1.Service](t, all["Service switchyard-relay"]).Spec.Ports[0].Port != 9443 {
		t.Errorf("the relay is %+v", c)
	}
	if rendered(t, nil)["Deployment switchyard-relay"] != nil {
		t.Error("there is a relay that nobody asked for")
	}
}
