package kube

import (
	"bytes"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/switchyard-net/switchyard/client/regularfile"
)

// Connection says how to reach the API server, in the terms of kube-proxy's configuration.
type Connection struct {
	// Kubeconfig is the path of a kubeconfig file. Empty, with an empty Master: the service account of the pod.
	Kubeconfig string
	// Kubeconfigs are paths of kubeconfig files that are merged if Kubeconfig and Master are empty, as kubectl merges
	// the files in $KUBECONFIG. If two files set the same value, the first counts. Their changes are not followed.
	Kubeconfigs []string
	// Master is the address of the API server, instead of the kubeconfig's.
	Master string
	// AcceptContentTypes and ContentType are headers of requests. Empty: protobuf.
	AcceptContentTypes, ContentType string
	// QPS is how many requests a second are sent on average, Burst how many at once. 0: client-go's defaults. A negative QPS:
	// no limit.
	QPS   float32
	Burst int
}

// Config returns the connection in client-go's terms.
func (c Connection) Config() (*rest.Config, error) {
	config, err := c.load()
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w; name a kubeconfig file (clientConnection.kubeconfig, "+
			"--kubeconfig), or run in a pod with a service account", err)
	}
	config.AcceptContentTypes, config.ContentType = c.AcceptContentTypes, c.ContentType
	config.QPS, config.Burst = c.QPS, c.Burst
	return config, nil
}

func (c Connection) load() (*rest.Config, error) {
	switch {
	case c.Kubeconfig == "" && c.Master == "" && len(c.Kubeconfigs) > 0:
		for _, path := range c.Kubeconfigs {
			if err := readable(path); err != nil {
				return nil, err
			}
		}
		rules := &clientcmd.ClientConfigLoadingRules{Precedence: c.Kubeconfigs}
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	case c.Kubeconfig == "" && c.Master == "":
		return rest.InClusterConfig()
	case c.Kubeconfig != "":
		if err := readable(c.Kubeconfig); err != nil {
			return nil, err
		}
	}
	return clientcmd.BuildConfigFromFlags(c.Master, c.Kubeconfig)
}

// readable returns an error for a path that is no file. client-go would wait for it, or read it to no end.
func readable(path string) error {
	_, err := regularfile.ReadFile(path, maxKubeconfig)
	return err
}

// maxKubeconfig is how many bytes a kubeconfig may have.
const maxKubeconfig = 8 << 20

// Follow returns the connection in client-go's terms, and a function for [Options.Renew], which notices that the kubeconfig says
// something else. The function is nil if there is no kubeconfig.
func (c Connection) Follow() (config *rest.Config, renew func() (*rest.Config, error), err error) {
	if c.Kubeconfig == "" {
		config, err = c.Config()
		return config, nil, err
	}
	used, _ := regularfile.ReadFile(c.Kubeconfig, maxKubeconfig) // before it counts: writes in between are noticed later
	if config, err = c.Config(); err != nil {
		return nil, nil, err
	}
	seen := used
	return config, func() (*rest.Config, error) {
		now, err := regularfile.ReadFile(c.Kubeconfig, maxKubeconfig)
		if err != nil {
			return nil, err
		}
		before := seen
		seen = now
		if bytes.Equal(now, used) || !bytes.Equal(now, before) {
			return nil, nil // it is as it was, or still being written
		}
		if len(bytes.TrimSpace(now)) == 0 { // for which client-go would take a pod's service account
			return nil, fmt.Errorf("kubeconfig %s is empty", c.Kubeconfig)
		}
		config, err := c.Config()
		if err == nil {
			used = now
		}
		return config, err
	}, nil
}

// RequestMetrics are what client-go observes of requests to the API server.
type RequestMetrics = clientmetrics.RegisterOpts

// ObserveRequests makes client-go observe its requests, for the whole process. Only the first call counts.
func ObserveRequests(m RequestMetrics) { clientmetrics.Register(m) }
