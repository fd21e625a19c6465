package node

import (
	"context"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/internal/winkernel"
)

// winkernelDataplane is the dataplane of Windows, in terms of the configuration.
type winkernelDataplane struct {
	*winkernel.Backend
	options DataplaneOptions
}

func openWinkernel(_ context.Context, c *config.Config, o DataplaneOptions, _ *nftablesDataplane) (Dataplane, error) {
	d := &winkernelDataplane{options: o}
	var err error
	if d.Backend, err = winkernel.New(winkernelOptions(c, o)); err != nil {
		return nil, err
	}
	return d, nil
}

func winkernelOptions(c *config.Config, o DataplaneOptions) winkernel.Options {
	if c.ResetConnectionsToRemovedEndpoints {
		o.Logger.Warn("resetConnectionsToRemovedEndpoints has no effect in mode kernelspace", "remedy", "set it to false")
	}
	return winkernel.Options{
		Config: winkernel.Config(c.Winkernel), HealthzPort: c.HealthzBindAddress.Port(), Logger: o.Logger, OnFailure: o.onHNSFailure,
	}
}

// Reconfigure implements [Dataplane].
func (d *winkernelDataplane) Reconfigure(c *config.Config) error {
	return d.Backend.Reconfigure(winkernelOptions(c, d.options))
}

// countHNSFailure counts a failure in the metrics, in kube-proxy's words.
func (n *Node) countHNSFailure(f winkernel.Failure) {
	n.registry.WinKernelFailure(metrics.WinKernelOperation(f.Operation), f.Family, f.LoadBalancerType(), f.Reason())
}
