// Command upstream is etcd, Kubernetes' control plane, kubelet and kube-proxy in one binary, as their projects release them. The first
// argument selects the program.
//
// It is one binary because they share most of their code, and linking takes longer than starting. `upstream feature-gates` prints
// the feature gates that are registered in it and their defaults, as config/featuregates.txt has them.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as the released binaries do
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-proxy":              proxy.NewProxyCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: upstream etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy [flags], or upstream feature-gates")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "feature-gates":
		featureGates()
		return
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "upstream: no program %q: run upstream without arguments for a list\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}

// featureGates prints the release, and each feature gate with its default.
func featureGates() {
	fmt.Printf("# Kubernetes %s, written by make feature-gates\n", version.Get().GitVersion)
	gates := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		fmt.Println(name, gates[name].Default)
	}
}
