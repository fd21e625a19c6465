package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/switchyard-net/switchyard/deploy/ociimage"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// kubeadm are the objects of a cluster that kubeadm has made.
func kubeadm(t *testing.T) objects {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "kubeadm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}

// program builds the program, and returns where it is and the link to it.
func program(t *testing.T) (switchyard, kubeProxy string) {
	t.Helper()
	dir := t.TempDir()
	switchyard, kubeProxy = filepath.Join(dir, "switchyard"), filepath.Join(dir, "kube-proxy")
	cmd := exec.Command("go", "build", "-trimpath", "-o", switchyard, "./cmd/switchyard")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(switchyard, kubeProxy); err != nil {
		t.Fatal(err)
	}
	return switchyard, kubeProxy
}

// TestProgramTakesArguments runs the program with the arguments of each container and its own configuration, and has it write
// the configuration instead of going on.
func TestProgramTakesArguments(t *testing.T) {
	switchyard, kubeProxy := program(t)
	for title, all := range deployments(t) {
		pod := into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template.Spec
		file := into[corev1.ConfigMap](t, all["ConfigMap switchyard"]).Data["config.yaml"]
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if len(c.Command) > 0 {
				t.Errorf("%s: %s has the command %v; the image has an entry point", title, c.Name, c.Command)
			}
			try(t, title+" "+c.Name, switchyard, c.Args, file)
		}
	}
	c := into[appsv1.DaemonSet](t, kubeadm(t)["DaemonSet kube-proxy"]).Spec.Template.Spec.Containers[0]
	if c.Command[0] != ociimage.KubeProxy {
		t.Errorf("kubeadm runs %s, the image has %s", c.Command[0], ociimage.KubeProxy)
	}
	file, err := os.ReadFile(filepath.Join("..", "..", "internal", "configfile", "testdata", "kubeadm.v1alpha1.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	try(t, "kubeadm", kubeProxy, c.Command[1:], string(file))
}

func try(t *testing.T, title, path string, args []string, file string) {
	t.Helper()
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(in, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	args = slices.Clone(args)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--config=") {
			args[i] = "--config=" + in
		}
		args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", "node-a")
	}
	cmd := exec.Command(path, append(args, "--write-config-to="+out)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %v\n%s", title, cmd.Args, err, text)
		return
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := configfile.Load(text, configfile.Options{})
	if err != nil || c.HostnameOverride != "node-a" {
		t.Errorf("%s: wrote %v\n%s", title, err, text)
	}
}

// kubeadmPatch is the patch that kubeadm applies itself, by the name that it asks for: a target, + and the type of patch.
const kubeadmPatch = "kubeproxydaemonset+strategic.yaml"

// TestKubeadmPatches puts our patches on kubeadm's DaemonSet. Nothing but the image may change.
func TestKubeadmPatches(t *testing.T) {
	for _, name := range []string{"image.yaml", kubeadmPatch} {
		t.Run(name, func(t *testing.T) { testKubeadmPatch(t, name) })
	}
}

// TestKubeadmAppliesOnePatch: `kubeadm --patches deploy/kubeadm` takes the files whose names begin with one of its targets.
func TestKubeadmAppliesOnePatch(t *testing.T) {
	files, err := os.ReadDir(filepath.Join("..", "kubeadm"))
	if err != nil {
		t.Fatal(err)
	}
	// parseFilename and knownTargets of cmd/kubeadm/app/util/patches
	target := regexp.MustCompile(`^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubeletconfiguration|corednsdeployment|kubeproxydaemonset)`)
	var applied []string
	for _, f := range files {
		if target.MatchString(f.Name()) {
			applied = append(applied, f.Name())
		}
	}
	if !slices.Equal(applied, []string{kubeadmPatch}) {
		t.Errorf("kubeadm applies %q, want only %s", applied, kubeadmPatch)
	}
}

func testKubeadmPatch(t *testing.T, name string) {
	before := into[appsv1.DaemonSet](t, kubeadm(t)["DaemonSet kube-proxy"])
	text, err := os.ReadFile(filepath.Join("..", "kubeadm", name))
	if err != nil {
		t.Fatal(err)
	}
	patch, err := sigsyaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	object, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(object, patch, appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var after appsv1.DaemonSet
	if err := json.Unmarshal(patched, &after); err != nil {
		t.Fatal(err)
	}
	want := before.DeepCopy()
	want.Spec.Template.Spec.Containers[0].Image = "localhost/switchyard:latest"
	if diff := cmp.Diff(want, &after); diff != "" {
		t.Errorf("the patch does something else (+) than to set the image (-):\n%s", diff)
	}
}
