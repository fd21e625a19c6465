package confine

import (
	"cmp"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-net/switchyard/test/certtest"
)

// The names and the group in the manifests.
const (
	apiServerName = "api-server.example"
	relayName     = "relay.example"
	group         = 65532
)

// manifests are the pods and the files of ConfigMaps that a directory of deploy makes.
type manifests struct {
	pod     corev1.PodSpec
	configs map[string]map[string]string
}

func readManifests(t *testing.T, dir string) *manifests {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "..", dir))
	if err != nil {
		t.Fatal(err)
	}
	m := &manifests{configs: make(map[string]map[string]string)}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		var d appsv1.DaemonSet // a Deployment has its pods at the same place
		var c corev1.ConfigMap
		switch r.GetKind() {
		case "DaemonSet", "Deployment":
			err = yaml.Unmarshal(text, &d)
			m.pod = d.Spec.Template.Spec
		case "ConfigMap":
			err = yaml.Unmarshal(text, &c)
			m.configs[c.Name] = c.Data
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// deployed is a node on which pods run as manifests say.
type deployed struct {
	*node
	ca *certtest.Authority
	// cgroups are where the containers of pods run, by name; nil for where the test does.
	cgroups map[string]string
}

// deploy starts a node with an API server that has the name in the manifests.
func deploy(t *testing.T) *deployed {
	t.Helper()
	return deployBeside(t, http.HandlerFunc(answer))
}

// deployBeside is the same with any API server.
func deployBeside(t *testing.T, api http.Handler) *deployed {
	t.Helper()
	d := &deployed{node: newNode(t), ca: certtest.NewAuthority()}
	cert, key := d.ca.Issue(time.Hour, pkix.Name{CommonName: "api"}, apiServerName)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	if err := d.ns.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.2:6443"); return err }); err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		api.ServeHTTP(w, r)
	})}
	go func() {
		_ = s.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}))
	}()
	t.Cleanup(func() { s.Close() })
	d.file("hosts", "127.0.0.2 "+apiServerName+"\n"+nodeAddr+" "+relayName+"\n")
	return d
}

// volume makes a directory as the kubelet does: its files are for the group.
func (d *deployed) volume(files map[string]string, mode os.FileMode) string {
	d.Helper()
	dir, err := os.MkdirTemp(d.dir, "volume")
	if err == nil {
		err = errors.Join(os.Chown(dir, 0, group), os.Chmod(dir, 0o777|os.ModeSetgid))
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600), os.Chown(path, 0, group), os.Chmod(path, mode))
	}
	if err != nil {
		d.Fatal(err)
	}
	return dir
}

// volumes makes the contents of a pod's volumes. certificate is the certificate for Secrets.
func (d *deployed) volumes(m *manifests, subject pkix.Name, hosts ...string) map[string]string {
	d.Helper()
	places := make(map[string]string)
	token := map[string]string{"token": "secret", "ca.crt": string(d.ca.PEM)}
	for _, v := range m.pod.Volumes {
		switch {
		case v.EmptyDir != nil:
			places[v.Name] = d.volume(nil, 0)
		case v.Secret != nil:
			cert, key := d.ca.Issue(time.Hour, subject, hosts...)
			places[v.Name] = d.volume(map[string]string{"tls.crt": string(cert), "tls.key": string(key), "ca.crt": string(d.ca.PEM)},
				os.FileMode(*v.Secret.DefaultMode))
		case v.ConfigMap != nil:
			places[v.Name] = d.volume(m.configs[v.ConfigMap.Name], 0o644)
		case v.Projected != nil:
			places[v.Name] = d.volume(token, 0o640)
		}
	}
	if automatic := m.pod.AutomountServiceAccountToken; automatic == nil || *automatic {
		places[""] = d.volume(token, 0o640)
	}
	return places
}

// runPod starts the containers of a pod with exactly their arguments, variables, user, capabilities and files, and nothing more.
func (d *deployed) runPod(m *manifests, volumes map[string]string) map[string]*process {
	d.Helper()
	processes := make(map[string]*process)
	for _, c := range m.pod.Containers {
		values, to := []string{"$(NODE_NAME)", "node-a"}, d.filter
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				to.Env = append(to.Env, e.Name+"="+e.Value)
			} else if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
				values = append(values, "$("+e.Name+")", m.configs[ref.Name][ref.Key])
			}
		}
		if d.cgroups != nil {
			to.Cgroup = d.cgroups[c.Name]
		}
		args := []string{"/switchyard"}
		for _, a := range c.Args {
			args = append(args, strings.NewReplacer(values...).Replace(a))
		}
		root, err := os.MkdirTemp(d.dir, "root")
		if err != nil {
			d.Fatal(err)
		}
		to.Root, to.Mounts = root, []mount{{d.binary, "/switchyard", false}, {"/proc", "/proc", false}, {filepath.Join(d.dir, "hosts"), "/etc/hosts", false}}
		for _, v := range c.VolumeMounts {
			to.Mounts = append(to.Mounts, mount{volumes[v.Name], v.MountPath, !v.ReadOnly})
		}
		if token := volumes[""]; token != "" {
			to.Mounts = append(to.Mounts, mount{token, "/var/run/secrets/kubernetes.io/serviceaccount", false})
		}
		to.UID = int(*cmp.Or(c.SecurityContext.RunAsUser, m.pod.SecurityContext.RunAsUser))
		if group := cmp.Or(c.SecurityContext.RunAsGroup, m.pod.SecurityContext.RunAsGroup); group != nil {
			to.GID = int(*group)
		}
		for _, name := range c.SecurityContext.Capabilities.Add {
			to.Caps = append(to.Caps, map[corev1.Capability]int{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW}[name])
		}
		processes[c.Name] = d.startAs(to, args...)
	}
	return processes
}

// well asks all probes of a pod.
func (d *deployed) well(m *manifests) bool {
	for _, c := range m.pod.Containers {
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			host := p.HTTPGet.Host
			if host == "" {
				host = nodeAddr
			}
			for _, port := range c.Ports {
				if port.Name == p.HTTPGet.Port.String() && !strings.HasPrefix(d.get(net.JoinHostPort(host, strconv.Itoa(int(port.ContainerPort))), p.HTTPGet.Path), "200") {
					return false
				}
			}
		}
	}
	return true
}

// TestManifestsSplit runs the two containers of a node.
func TestManifestsSplit(t *testing.T) {
	d, m := deploy(t), readManifests(t, "kustomize/split")
	pod := d.runPod(m, d.volumes(m, pkix.Name{}))
	d.eventually("connections are routed", d.routes(clusterAddr))
	d.eventually("the probes succeed", func() bool { return d.well(m) })
	if got := pod["serve"].status("CapEff") + pod["apply"].status("CapEff"); got != "00000000000000000000000000001000" {
		t.Errorf("serve and apply have the capabilities %s", got)
	}
	if got := pod["serve"].status("Uid") + ", " + pod["apply"].status("Uid"); got != "65532 65532 65532 65532, 0 0 0 0" {
		t.Errorf("serve and apply are the users %s", got)
	}
	if _, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pod["apply"].cmd.Process.Pid), "root/var/run/secrets/kubernetes.io/serviceaccount/token")); err == nil {
		t.Error("apply has a token")
	}
	pod["apply"].stop()
	pod["serve"].stop()
}

// TestManifestsRelay runs a relay, and a node that has its objects from it.
func TestManifestsRelay(t *testing.T) {
	d, relay, node := deploy(t), readManifests(t, "kustomize/relay"), readManifests(t, "test/testdata/relayed")
	relays := d.runPod(relay, d.volumes(relay, pkix.Name{CommonName: "relay"}, relayName))
	d.eventually("the relay's probes succeed", func() bool { return d.well(relay) })
	if got := relays["relay"].status("CapEff"); got != "0000000000000000" {
		t.Errorf("the relay has the capabilities %s", got)
	}
	// Any node may see its own state; a relay's certificate is more.
	stranger := d.runPod(node, d.volumes(node, pkix.Name{CommonName: "system:node:node-a"}))
	d.eventually("a stranger is refused", func() bool { return strings.Contains(d.get("127.0.0.1:10266", "/healthz"), "switchyard:relays") })
	stranger["apply"].stop()
	stranger["serve"].stop()
	pod := d.runPod(node, d.volumes(node, pkix.Name{CommonName: "node", Organization: []string{"switchyard:relays"}}))
	d.eventually("connections are routed", d.routes(clusterAddr))
	d.eventually("the node's probes succeed", func() bool { return d.well(node) })
	pod["apply"].stop()
	pod["serve"].stop()
	relays["relay"].stop()
}
