package test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

var longFlag = regexp.MustCompile(`--[a-z][a-z-]*`)

// TestWindows: the DaemonSets run on Windows nodes alone, with the rights and the account that they need, and with a configuration of Windows without
// remarks; start.ps1 knows the network, gives the program flags that it has, and ends with its exit code.
func TestWindows(t *testing.T) {
	account := kustomize(t, "base")["ServiceAccount switchyard"]
	for _, plugin := range []string{"calico", "flannel"} {
		all := kustomize(t, "../windows/"+plugin)
		pod := into[appsv1.DaemonSet](t, all["DaemonSet switchyard-windows"]).Spec.Template.Spec
		data := into[corev1.ConfigMap](t, all["ConfigMap switchyard-windows"]).Data
		o := pod.SecurityContext.WindowsOptions
		if !pod.HostNetwork || o == nil || o.HostProcess == nil || !*o.HostProcess || *o.RunAsUserName != `NT AUTHORITY\system` {
			t.Errorf("%s: no HostProcess container of the system: %+v", plugin, o)
		}
		if pod.NodeSelector[corev1.LabelOSStable] != "windows" || pod.ServiceAccountName != account.GetName() {
			t.Errorf("%s: it runs on %v as %s", plugin, pod.NodeSelector, pod.ServiceAccountName)
		}
		c, notes, err := configfile.Load([]byte(data["config.yaml"]), configfile.Options{Platform: "windows"})
		if err != nil || len(notes) > 0 || len(c.WithoutEffect()) > 0 {
			t.Errorf("%s: the configuration: %v, %v", plugin, notes, err)
			continue
		}
		if c.Mode != config.ModeKernelspace {
			t.Errorf("%s: the mode is %s", plugin, c.Mode)
		}
		if c.ClientConnection.Kubeconfig != pod.Containers[0].VolumeMounts[0].MountPath+"/kubeconfig.yaml" || data["kubeconfig.yaml"] == "" {
			t.Errorf("%s: the kubeconfig is to be at %s", plugin, c.ClientConnection.Kubeconfig)
		}
		script := data["start.ps1"]
		flags := longFlag.FindAllString(script, -1)
		if !slices.Equal(flags, []string{"--config", "--hostname-override", "--network-name", "--source-vip"}) {
			t.Errorf("%s: the flags are %v", plugin, flags)
		}
		if !strings.HasSuffix(script, "exit $LASTEXITCODE\n") {
			t.Errorf("%s: the exit code of the program is lost", plugin)
		}
		if !slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "KUBE_NETWORK" && e.Value != "" }) {
			t.Errorf("%s: nothing names the HNS network", plugin)
		}
	}
}
