package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/source/file"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/source/relay"
	"github.com/switchyard-net/switchyard/state"
)

// nodeOrHost returns the name of this node, which is the host's if none is given.
func nodeOrHost(node string) (string, error) {
	if node != "" {
		return node, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this node's name: %w; give it with --node", err)
	}
	return strings.ToLower(host), nil
}

// objectFlags say where the cluster's objects come from: files, a relay, or an API server.
type objectFlags struct {
	path       string
	relays     []string
	relayTLS   client.TLSFiles
	kubeconfig string
	master     string
}

func (o *objectFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.path, "source", "", "manifest or directory of manifests to read and follow, instead of an API server")
	f.StringSliceVar(&o.relays, "relay", nil, "relays to have the cluster's objects from, instead of an API server, such as dns:///relay.example:8443; the next one is tried when one fails")
	f.StringVar(&o.relayTLS.CA, "relay-ca", "", "authorities that vouch for relays, in PEM")
	f.StringVar(&o.relayTLS.Cert, "relay-cert", "", "certificate to show to relays, of the organisation switchyard:relays")
	f.StringVar(&o.relayTLS.Key, "relay-key", "", "key of the certificate to show to relays")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server (default: the pod's service account)")
	f.StringVar(&o.master, "master", "", "address of the API server, in place of the kubeconfig's")
}

// source makes the source. node is empty for objects of all nodes.
func (o *objectFlags) source(node, proxyName string, log *slog.Logger) (source.Source, error) {
	switch {
	case o.path != "":
		return file.New(file.Options{Path: o.path, Whole: true, Logger: log})
	case len(o.relays) > 0:
		creds, err := credentialsFor(o.relays, o.relayTLS)
		if err != nil {
			return nil, err
		}
		return relay.New(relay.Options{Targets: o.relays, Credentials: creds, Logger: log})
	}
	config, err := (&kube.Connection{
		Kubeconfig: o.kubeconfig, Master: o.master, ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10,
	}).Config()
	if err != nil {
		return nil, err
	}
	return kube.New(kube.Options{Config: config, NodeName: node, AllNodes: node == "", ServiceProxyName: proxyName, Logger: log})
}

// credentialsFor returns how to reach relays. Without certificates they must be on this host.
func credentialsFor(targets []string, files client.TLSFiles) (credentials.TransportCredentials, error) {
	if files != (client.TLSFiles{}) {
		config, err := files.Config()
		if err != nil {
			return nil, err
		}
		return credentials.NewTLS(config), nil
	}
	for _, t := range targets {
		conn, err := client.Dial(client.Options{Target: t}) // knows which targets may do without
		if err != nil {
			return nil, fmt.Errorf("--relay: %w", err)
		}
		if err := conn.Close(); err != nil {
			return nil, err
		}
	}
	return insecure.NewCredentials(), nil
}

// routingFlags are what the operator decides about routing.
type routingFlags struct {
	clusterCIDRs     prefixes
	masqueradeAll    bool
	serviceProxyName string
}

func (r *routingFlags) register(f *pflag.FlagSet) {
	f.Var(&r.clusterCIDRs, "cluster-cidr", "addresses of all pods; who connects from elsewhere is masqueraded on cluster IPs. Dataplanes need the same setting")
	f.BoolVar(&r.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	f.StringVar(&r.serviceProxyName, "service-proxy-name", "", "handle the Services with this value of the label service.kubernetes.io/service-proxy-name, instead of those without it")
}

// brain returns what the flags mean to the brain. The node's name is left to the caller.
func (r *routingFlags) brain() brain.Config {
	detector := r.detector()
	return brain.Config{
		ServiceProxyName: r.serviceProxyName, MasqueradeAll: r.masqueradeAll,
		DetectLocal: brain.Families{IPv4: detector.Detects(state.IPv4), IPv6: detector.Detects(state.IPv6)},
	}
}

func (r *routingFlags) detector() backend.LocalDetector {
	return backend.LocalDetector{ClusterCIDRs: r.clusterCIDRs}
}
