package kube

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// clients has a client for each API group. Package client-go/kubernetes would link and register every type of every
// group, which costs megabytes in each process of each node.
type clients map[schema.GroupVersion]rest.Interface

// dialControl is called with the socket of each connection before it connects.
type dialControl func(network, address string, c syscall.RawConn) error

// connectTimeout is client-go's, which has no constant for it: also the time between two probes of a connection that is idle.
const connectTimeout = 30 * time.Second

const protobuf = runtime.ContentTypeProtobuf

func newClients(config *rest.Config, types *runtime.Scheme, codecs serializer.CodecFactory, control dialControl) (clients, error) {
	config = rest.CopyConfig(config)
	// The way to the API server is short, and packing takes the API server longer than sending.
	config.DisableCompression = true
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: connectTimeout, KeepAlive: connectTimeout, Control: control}).DialContext
	}
	if config.ContentType == "" {
		config.ContentType = protobuf
		if config.AcceptContentTypes == "" {
			config.AcceptContentTypes = protobuf + "," + runtime.ContentTypeJSON
		}
	}
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if config.RateLimiter == nil && config.QPS >= 0 {
		// One limit for all clients, as the configuration means it. Watches are not limited.
		qps, burst := config.QPS, config.Burst
		if qps == 0 {
			qps = rest.DefaultQPS
		}
		if burst == 0 {
			burst = rest.DefaultBurst
		}
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, burst)
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusals{next} })
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	made := clients{}
	for _, version := range types.PrioritizedVersionsAllGroups() {
		config.GroupVersion = &version
		config.APIPath = "/apis"
		if version.Group == "" {
			config.APIPath = "/api"
		}
		if made[version], err = rest.RESTClientForConfigAndClient(config, httpClient); err != nil {
			return nil, fmt.Errorf("make a client for the API server: %w", err)
		}
	}
	return made, nil
}

// refusals bounds the bodies of answers that are no success, which client-go reads as a whole.
type refusals struct{ next http.RoundTripper }

// maxRefusal is how many bytes such a body may have.
const maxRefusal = 1 << 20

// RoundTrip implements [http.RoundTripper].
func (t refusals) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxRefusal), resp.Body}
	}
	return resp, err
}

// scheme knows the API groups that are watched, and the API group of events.
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	add := runtime.NewSchemeBuilder(corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme)
	return s, add.AddToScheme(s)
}
