package main

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
)

// newDaemon returns the process of 'switchyard proxy'.
func newDaemon(ctx context.Context, p *proxyFlags, c *config.Config, log *slog.Logger, v *verbosity) (*daemon, error) {
	usual, awaiting := collectOften(), &awaiting{}
	requests := prometheus.NewRegistry()
	n, err := node.New(ctx, node.Options{
		Config: c, Logger: log, Program: programName(), Version: currentVersion(), TakeOver: p.takeOver, ReplaceKubeProxy: true, Memory: processMemory(),
		Source: func(c *config.Config, name string) (model.Source, error) {
			return kubeSource(c, p.master, name, awaiting.of(c, name), log)
		},
		OnReady: func(services int) {
			usual()
			awaiting.over.Store(true)
			log.Info("the first state is programmed", "services", services)
		},
		Flags: func() map[string]string {
			flags := map[string]string{}
			p.flags.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
			return flags
		},
		LogLinesSuppressed: v.limiter.Suppressed, Metrics: requests,
	})
	if err != nil {
		return nil, err
	}
	observeRequests(requests)
	return &daemon{&p.files, p.override, log, v, n}, nil
}

// kubeSource makes a source of the objects that an API server has, at master if that is not empty. name is empty for objects of all nodes.
func kubeSource(c *config.Config, master, name string, await kube.Await, log *slog.Logger) (model.Source, error) {
	api, renew, err := kubeConnection(c, master).Follow()
	if err != nil {
		return nil, err
	}
	return kube.New(kube.Options{
		Config: api, Renew: renew, NodeName: name, AllNodes: name == "", NodeHealth: c.NodeHealth.Enabled, Edge: c.Edge.Enabled(), ServiceProxyName: c.ServiceProxyName, Await: await,
		ResyncPeriod: c.ConfigSyncPeriod.Duration, Names: c.API.Names && len(c.API.Listen) > 0, Mark: node.UpstreamMark(c), Logger: log,
	})
}

// awaiting tells the sources of a process what to wait for.
type awaiting struct {
	// over is set after the first state. Later sources do not wait, because the known fields of the Node stay in effect. A source that waits
	// delivers no other objects either.
	over atomic.Bool
}

// of are the fields of the Node that c relies on. With nodeIPOverride it may have no addresses, and states of all nodes wait for none.
func (a *awaiting) of(c *config.Config, node string) kube.Await {
	if node == "" || a.over.Load() {
		return kube.Await{}
	}
	return kube.Await{Addresses: c.NodePorts().Primary && len(c.NodeIPOverride) == 0, PodCIDRs: c.LocalDetector().NodeCIDR}
}

// kubeConnection is how to reach the API server, at master if that is not empty.
func kubeConnection(c *config.Config, master string) kube.Connection {
	return kube.Connection{
		Kubeconfig: c.ClientConnection.Kubeconfig, Master: master,
		AcceptContentTypes: c.ClientConnection.AcceptContentTypes, ContentType: c.ClientConnection.ContentType,
		QPS: c.ClientConnection.QPS, Burst: int(c.ClientConnection.Burst),
	}
}

// observeRequests adds the requests of this process to the API server to the metrics.
func observeRequests(r prometheus.Registerer) {
	requests := metrics.NewRESTClient(r)
	kube.ObserveRequests(kube.RequestMetrics{
		RequestLatency: requests.RequestLatency, RateLimiterLatency: requests.RateLimiterLatency,
		RequestSize: requests.RequestSize, ResponseSize: requests.ResponseSize,
		RequestResult: requests.RequestResult, RequestRetry: requests.RequestRetry,
		TransportCreateCalls: requests.TransportCreateCalls, TransportCAReloads: requests.TransportCAReloads,
	})
}
