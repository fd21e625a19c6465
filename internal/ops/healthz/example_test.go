package healthz_test

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ops/healthz"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/internal/ops/servicehealth"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Example wires health, metrics and health check node ports into a proxy. The surrounding daemon runs all the
// functions that are returned.
func Example() {
	_ = func(log *slog.Logger, st *store.Store, src model.Source, problems func() []error, dataplane backend.Backend) []func(context.Context) error {
		families := []state.Family{state.IPv4, state.IPv6} // those that the dataplane programs
		syncPeriod := 30 * time.Second                     // of the configuration
		newest := func() state.Revision { return st.Snapshot().Revision() }

		var ports *servicehealth.Server
		registry := metrics.New(metrics.Options{
			Mode:                metrics.ModeNFTables,
			Families:            families,
			Version:             "v1.0.0",
			Services:            func() int { return st.Snapshot().Len() },
			SourceProblems:      func() int { return len(problems()) },
			HealthCheckProblems: func() int { return len(ports.Problems()) },
		})
		health := healthz.New(healthz.Options{
			Families:  families,
			Timeout:   2 * syncPeriod,
			Newest:    newest,
			OnHealthz: registry.Healthz,
			OnLivez:   registry.Livez,
		})
		health.AddProblems("source", problems)
		ports = servicehealth.New(servicehealth.Options{
			Logger:    log,
			Healthy:   health.Healthy,
			OnProblem: func(p servicehealth.Problem) { /* an event: FailedToStartServiceHealthcheck about p.Service */ },
		})
		// Without nodePortAddresses all addresses; else what state.NodePortAddresses.Select returns, again after each change of the interfaces
		// and of the node.
		ports.SetAddresses(servicehealth.AllAddresses(families...))
		// The source of cluster objects calls this after each change of the Node; one without a cluster calls it once.
		health.SetNode(healthz.Node{Exists: true})

		operator := healthz.Operator(healthz.OperatorOptions{
			Metrics:   registry.Handler(),
			ProxyMode: func() string { return metrics.ModeNFTables },
			Version:   "v1.0.0",
			Config:    func() any { return map[string]string{"kind": "KubeProxyConfiguration"} },
			Flags:     func() map[string]string { return map[string]string{"v": "2"} },
		})
		// A program that others can reach also bounds their number of connections.
		serve := func(address string, h http.Handler) func(context.Context) error {
			server := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second}
			return func(ctx context.Context) error {
				defer context.AfterFunc(ctx, func() { _ = server.Close() })()
				if err := server.ListenAndServe(); ctx.Err() == nil {
					return err
				}
				return nil
			}
		}
		sink := registry.CountChanges(st.Source("kube"), newest)
		return []func(context.Context) error{
			func(ctx context.Context) error { return src.Run(ctx, sink) },
			func(ctx context.Context) error {
				return backend.Run(ctx, st, dataplane, backend.RunOptions{
					Logger: log,
					OnAttempt: func(a backend.Attempt) {
						registry.Attempt(a)
						if a.Update != nil && a.Err == nil {
							ports.Update(a.Update)
						}
					},
					OnStatus: func(s backend.Status) {
						registry.Status(s)
						health.Status(s)
					},
				})
			},
			ports.Run,
			serve("0.0.0.0:10256", health.Handler()),
			serve("127.0.0.1:10249", operator),
		}
	}
}
