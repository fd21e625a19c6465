// Command upstream is etcd, kube-apiserver, kube-controller-manager and kube-proxy in one binary, as their projects
// release them: the first argument reports which of them to be.
//
// It is one binary because they share most of their code, and linking takes longer than starting.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as the released binaries do
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-proxy":              proxy.NewProxyCommand,
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: upstream etcd|kube-apiserver|kube-controller-manager|kube-proxy [flags]")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "upstream: no program %q: it is etcd, kube-apiserver, kube-controller-manager or kube-proxy\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
