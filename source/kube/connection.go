package kube

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// Connection says how to reach the API server, in the terms of kube-proxy's configuration.
type Connection struct {
	// Kubeconfig is the path of a kubeconfig file. Empty, with an empty Master: the service account of the pod.
	Kubeconfig string
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
	if c.Kubeconfig == "" && c.Master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags(c.Master, c.Kubeconfig)
}

// RequestMetrics are what client-go observes of requests to the API server.
type RequestMetrics = clientmetrics.RegisterOpts

// ObserveRequests makes client-go observe its requests, for the whole process. Only the first call counts.
func ObserveRequests(m RequestMetrics) { clientmetrics.Register(m) }
