package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/source/file"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
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
	grace      time.Duration
	relays     []string
	relayTLS   client.TLSFiles
	relayUsers []string
	kubeconfig string
	master     string
}

func (o *objectFlags) register(f *pflag.FlagSet) {
	f.Var((*oncePath)(&o.path), "source", "manifest or directory of manifests to read and follow, instead of an API server")
	f.DurationVar(&o.grace, "source-grace", sourceGrace, sourceGraceUsage)
	f.StringSliceVar(&o.relays, "relay", nil, "relays to have the cluster's objects from, instead of an API server, such as dns:///relay.example:8443; the next one is tried when one fails")
	f.StringVar(&o.relayTLS.CA, "relay-ca", "", "authorities that vouch for relays, in PEM; read again for each connection, as are the next two")
	f.StringVar(&o.relayTLS.Cert, "relay-cert", "", "certificate to show to relays, of the organisation switchyard:relays")
	f.StringVar(&o.relayTLS.Key, "relay-key", "", "key of the certificate to show to relays")
	f.StringVar(&o.relayTLS.ServerName, "relay-server-name", "", "name that relays' certificates must have (default: the host in --relay)")
	f.StringSliceVar(&o.relayUsers, "relay-socket-users", nil, "users whose processes may serve unix sockets in --relay, by name or number, in addition to root and this process's user")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server, followed when it changes (default: the pod's service account)")
	f.StringVar(&o.master, "master", "", "address of the API server, in place of the kubeconfig's")
}

// sourceGrace is the default of --source-grace, which 'switchyard run' has as well.
const (
	sourceGrace      = 10 * time.Second
	sourceGraceUsage = "how long a manifest that has lost objects while it was written in place must be left alone before they are withdrawn; 0: not at all"
)

// graceOf is a grace time in the terms of package file, where 0 stands for the default.
func graceOf(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// check finds flags that contradict each other, or that cannot be used.
func (o *objectFlags) check() error {
	var origins []string
	for name, given := range map[string]bool{
		"--source": o.path != "", "--relay": len(o.relays) > 0, "--kubeconfig and --master": o.kubeconfig != "" || o.master != "",
	} {
		if given {
			origins = append(origins, name)
		}
	}
	slices.Sort(origins)
	switch {
	case len(origins) > 1:
		return fmt.Errorf("%s exclude each other: objects come from one place; leave out all but one", strings.Join(origins, ", "))
	case len(o.relays) == 0 && o.relayTLS != (client.TLSFiles{}):
		return errors.New("--relay-ca, --relay-cert, --relay-key and --relay-server-name are for relays; name one with --relay, or leave them out")
	case (o.relayTLS.Cert == "") != (o.relayTLS.Key == ""):
		return errors.New("--relay-cert and --relay-key are needed together")
	}
	if _, err := peeruser.Parse(o.relayUsers); err != nil {
		return fmt.Errorf("--relay-socket-users: %w", err)
	}
	for _, t := range o.relays {
		if err := dialable(t, &tls.Config{}); err != nil {
			return fmt.Errorf("--relay: %w", err)
		}
		if o.relayTLS == (client.TLSFiles{}) && dialable(t, nil) != nil {
			return fmt.Errorf("--relay: %s may be on another host, which takes TLS: give --relay-ca, --relay-cert and --relay-key, or choose "+
				"a unix socket or a loopback address", t)
		}
	}
	return nil
}

// dialable returns why the client refuses a target, nil if it does not.
func dialable(target string, c *tls.Config) error {
	conn, err := client.Dial(client.Options{Target: target, TLS: c})
	if err == nil {
		err = conn.Close()
	}
	return err
}

// source makes the source. check was called before. name is empty for objects of all nodes. await is for an API server.
func (o *objectFlags) source(c *config.Config, name string, await kube.Await, log *slog.Logger) (model.Source, error) {
	switch {
	case o.path != "":
		return file.New(file.Options{Path: o.path, Whole: true, Grace: graceOf(o.grace), Logger: log})
	case len(o.relays) > 0:
		var certificates *client.Certificates // none on this host; see check
		if o.relayTLS != (client.TLSFiles{}) {
			var err error
			if certificates, err = client.NewCertificates(o.relayTLS, log); err != nil {
				return nil, err
			}
		}
		return relay.New(relay.Options{
			Targets: o.relays, Certificates: certificates, SocketUsers: o.relayUsers, Mark: node.UpstreamMark(c), NodeHealth: c.NodeHealth.Enabled, Edge: c.Edge.Enabled(), Logger: log,
		})
	}
	return kubeSource(c, o.master, name, await, log)
}

// namesUsage is the help text of --names.
const namesUsage = "serve the names of all Services to DNS servers, too: also of Services that are not routed, which are then watched as well"

// serviceProxyNameUsage is the help text of --service-proxy-name.
const serviceProxyNameUsage = "handle the Services with this value of the label service.kubernetes.io/service-proxy-name, instead of those without it"

// routingFlags are what the operator decides about routing.
type routingFlags struct {
	clusterCIDRs      prefixes
	nodePortAddresses nodePortAddresses
	masqueradeAll     bool
	serviceProxyName  string
	services          config.Services
}

// register adds the flags. apiUsage ends the usage of those that the node-local API carries.
func (r *routingFlags) register(f *pflag.FlagSet, apiUsage string) {
	f.Var(&r.clusterCIDRs, "cluster-cidr", "addresses of all pods; who connects from elsewhere is masqueraded on cluster IPs"+apiUsage)
	f.Var(&r.nodePortAddresses, "nodeport-addresses", "where node ports are served: CIDRs of local addresses, or primary for the Node's first address of each family (the default)"+apiUsage)
	f.BoolVar(&r.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	defaults := config.Default().Services
	f.Var((*prefixes)(&r.services.AllowedExternalIPs), "allowed-external-ips", "ranges that externalIPs of Services may be in; empty for any address, 0.0.0.0/32 for none")
	f.BoolVar(&r.services.NodeExternalIPs, "node-external-ips", false, "allow externalIPs that are addresses of Nodes")
	f.Int64Var(&r.services.MaxEntries, "max-entries-per-service", defaults.MaxEntries, "how many entries are routed for one Service: endpoints behind frontends, source ranges, and five for each frontend and port of a family; 0 for the most, 1600000, -1 for what the memory limit allows")
	f.Int64Var(&r.services.MaxEntriesPerNamespace, "max-entries-per-namespace", defaults.MaxEntriesPerNamespace, "how many of them for the Services of a namespace; 0 for no bound, -1 for what the memory limit allows")
	f.Int64Var(&r.services.MaxEntriesPerNode, "max-entries-per-node", defaults.MaxEntriesPerNode, "how many of them in all; 0 for no bound, -1 for what the memory limit allows")
	f.StringVar(&r.serviceProxyName, "service-proxy-name", "", serviceProxyNameUsage)
}

// set gives c what the flags mean that count.
func (r *routingFlags) set(c *config.Config, counts func(flag string) bool) {
	from, to := &r.services, &c.Services
	for flag, set := range map[string]func(){
		"cluster-cidr":              func() { c.DetectLocalMode, c.DetectLocal.ClusterCIDRs = config.LocalModeClusterCIDR, r.clusterCIDRs },
		"nodeport-addresses":        func() { c.NodePortAddresses = r.nodePortAddresses.NodePortAddresses },
		"masquerade-all":            func() { c.Linux.MasqueradeAll = r.masqueradeAll },
		"service-proxy-name":        func() { c.ServiceProxyName = r.serviceProxyName },
		"allowed-external-ips":      func() { to.AllowedExternalIPs = from.AllowedExternalIPs },
		"node-external-ips":         func() { to.NodeExternalIPs = from.NodeExternalIPs },
		"max-entries-per-service":   func() { to.MaxEntries = from.MaxEntries },
		"max-entries-per-namespace": func() { to.MaxEntriesPerNamespace = from.MaxEntriesPerNamespace },
		"max-entries-per-node":      func() { to.MaxEntriesPerNode = from.MaxEntriesPerNode },
	} {
		if counts(flag) {
			set()
		}
	}
}

// check finds flags that cannot be used.
func (r *routingFlags) check() error {
	s := &r.services
	if s.MaxEntries < config.ByMemory || s.MaxEntries > brain.MaxEntries {
		return fmt.Errorf("--max-entries-per-service must be from 0 to %d, or -1, got %d", brain.MaxEntries, s.MaxEntries)
	}
	if s.MaxEntriesPerNamespace < config.ByMemory || s.MaxEntriesPerNode < config.ByMemory {
		return errors.New("--max-entries-per-namespace and --max-entries-per-node must be 0 or more, or -1; 0 stands for no bound")
	}
	return nil
}

// flagConfig returns the configuration of a command without a configuration file: nothing is asked from the API server again at
// intervals.
func flagConfig() *config.Config {
	c := config.Default()
	c.Mode, c.ConfigSyncPeriod = config.ModeNFTables, config.Duration{}
	return c
}

// commandFlags are the flags of run, serve and apply for fields of the configuration.
var commandFlags = map[string]string{
	"healthzBindAddress": "--healthz-bind-address", "metricsBindAddress": "--metrics-bind-address", "adminBindAddress": "--admin-bind-address", "uiBindAddress": "--ui-bind-address", "api.listen": "--listen", "api.socketMode": "--socket-mode",
	"api.tlsCertFile": "--tls-cert", "api.tlsKeyFile": "--tls-key", "api.clientCAFile": "--client-ca",
	"detectLocal": "--cluster-cidr", "nodePortAddresses": "--nodeport-addresses",
}

// flagFor returns the flag for a field of the configuration.
func flagFor(path string) string { return cmp.Or(commandFlags[path], path) }
