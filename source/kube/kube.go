// Package kube is the source of cluster objects that watches a Kubernetes API server.
//
// It delivers Services, EndpointSlices, ServiceCIDRs, this Node and the namespaces that have opted out of the proxy by
// the label networking.k8s.io/kube-proxy=disabled. It watches Services and EndpointSlices by one request each for the
// whole cluster. The field selectors leave out the namespaces that have the label when the watch begins. When another
// namespace gets the label, its objects are dropped without a request. When a namespace loses the label, only that
// namespace is listed: docs/adr/0014-opt-out.md.
//
// With [Options.NodeHealth] or [Options.Edge], it watches all Nodes, once for both. It then also delivers the health of the others, or what their edge
// needs.
//
// Each arriving object becomes a value of package model. The source keeps only the name and the version of each object.
// After a lost connection, these show which objects are deleted or changed.
//
// A watch that ends is resumed. If the API server has gone back to an earlier state, for example after a restore of
// etcd, everything is listed again instead.
//
// While the API server cannot be reached, the last known objects stay. client-go reads the token, client certificate
// and CA files that the rest.Config names again: the token every minute, certificates every five minutes. (CA files
// depend on client-go's feature gate ClientsAllowCARotation, which is on unless
// KUBE_FEATURE_ClientsAllowCARotation=false.) [Options.Renew] follows changes of a kubeconfig itself. Then everything
// is listed again, and only objects that are gone or different are delivered.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/internal/source/upstream"
	"github.com/switchyard-net/switchyard/model"
)

// Options says which API server to watch, and for whom.
type Options struct {
	// Config is how to reach the API server. Required; it is not modified. Objects travel as protobuf unless it names a
	// content type.
	Config *rest.Config
	// Renew is called every 5 seconds. It returns a new connection to the API server, or nil if nothing has changed. An
	// error is logged, and changes nothing. Renew may be nil. See [Connection.Follow].
	Renew func() (*rest.Config, error)
	// NodeName is the name of this Node, the only one that is delivered unless NodeHealth or Edge is set. Required, unless AllNodes is set.
	NodeName string
	// AllNodes makes the source deliver all Nodes, for a relay that serves them. NodeEligible then says nothing.
	AllNodes bool
	// NodeHealth makes the source watch all Nodes and deliver their health. Of other Nodes than NodeName, it delivers the name and the health only, unless
	// Edge is set. Without NodeHealth, no Node has a health.
	NodeHealth bool
	// Edge makes the source watch all Nodes and deliver who takes part in the edge. Of other Nodes than NodeName, it delivers the name, the first
	// [model.MostOfNode] addresses and pod CIDRs, and the annotation. Without it, no Node has the annotation.
	Edge bool
	// Await are fields that the Node must have before the source is complete, so that nothing is published without them.
	Await Await
	// ServiceProxyName makes the source deliver exactly the Services whose label
	// service.kubernetes.io/service-proxy-name has this value. Empty selects Services without the label. EndpointSlices
	// are selected by the same label, which the EndpointSlice controller copies from the Service. Slices that people
	// write for a Service with a proxy name also need it.
	ServiceProxyName string
	// Names makes the source deliver all Services and all their EndpointSlices, for [store.Names]. These include
	// headless Services, Services with another service-proxy-name, and Services in namespaces that have opted out of
	// the proxy.
	//
	// [store.Names]: https://pkg.go.dev/github.com/switchyard-net/switchyard/store#Names
	Names bool
	// ResyncPeriod is how long a watch lasts at least before it is opened again, from where it ended. It ends after once or
	// twice that time. The default, and the least, is 5 minutes. Before it is opened again, the API server is asked whether its history is
	// still the same; if it is not, everything is listed again.
	ResyncPeriod time.Duration
	// ListSpread is the time within which a namespace that loses the label networking.k8s.io/kube-proxy=disabled is
	// listed. The moment is random, so that thousands of nodes do not send requests at once. The spread doubles while
	// the label keeps changing, and grows with the number of such namespaces. Default: 2 seconds.
	ListSpread time.Duration
	// Mark is the mark of the packets to the API server, as far as the process may set it (CAP_NET_ADMIN on Linux). Default: none.
	Mark uint32
	// Logger gets problems with the API server and with objects. Nil discards it.
	Logger *slog.Logger
}

// Source implements [model.Source].
type Source struct {
	options  Options
	log      *slog.Logger
	types    *runtime.Scheme
	codecs   serializer.CodecFactory
	clients  atomic.Pointer[clients] // replaced by the goroutine of Run
	decoder  runtime.Decoder
	health   health
	eligible atomic.Bool
	peers    upstream.Peers
}

var _ model.Source = (*Source)(nil)

// New returns a source for the API server. It does not connect yet. It returns an error if an option is missing or the
// configuration is unusable, for example because it names an unreadable file.
func New(o Options) (*Source, error) {
	if o.Config == nil {
		return nil, errors.New("no Config: say how to reach the API server")
	}
	if o.NodeName == "" && !o.AllNodes {
		return nil, errors.New("no NodeName: say which Node this is")
	}
	if o.NodeName != "" && o.AllNodes {
		return nil, errors.New("NodeName and AllNodes exclude each other: either one Node is wanted, or all are")
	}
	if faults := validation.IsValidLabelValue(o.ServiceProxyName); len(faults) > 0 {
		return nil, fmt.Errorf("ServiceProxyName %q cannot be the value of a label: %s", o.ServiceProxyName, strings.Join(faults, "; "))
	}
	if faults := validation.IsDNS1123Subdomain(o.NodeName); !o.AllNodes && len(faults) > 0 {
		return nil, fmt.Errorf("NodeName %q cannot be the name of a Node: %s", o.NodeName, strings.Join(faults, "; "))
	}
	if o.ListSpread < 0 {
		return nil, fmt.Errorf("ListSpread is %v: choose a time that is not negative, or 0 for the default", o.ListSpread)
	}
	types, err := scheme()
	if err != nil {
		return nil, fmt.Errorf("register the types of the API: %w", err)
	}
	codecs := serializer.NewCodecFactory(types)
	s := &Source{
		options: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		types: types, codecs: codecs, decoder: codecs.UniversalDeserializer(),
	}
	s.peers.Mark = o.Mark
	if err := s.connect(o.Config); err != nil {
		return nil, err
	}
	s.health.log = s.log
	s.eligible.Store(true)
	return s, nil
}

// connect makes the clients by which the API server is asked from now on.
func (s *Source) connect(config *rest.Config) error {
	c, err := newClients(config, s.types, s.codecs, s.peers.Control)
	if err == nil {
		s.clients.Store(&c)
	}
	return err
}

// Run delivers until ctx ends.
func (s *Source) Run(ctx context.Context, sink model.Sink) error {
	// client-go's own messages are for debugging; important events are logged here, once.
	ctx = logr.NewContext(ctx, logr.FromSlogHandler(demote{s.log.Handler()}))
	newDelivery(s, sink).run(ctx)
	return nil
}

// Problems returns the resources that cannot be listed or watched now, with the reason, the start and a remedy, and
// nothing if all is well. Objects that were known before a problem stay in force, so a problem does not make the node
// unhealthy. A cluster whose API server is down still needs its routes. It may be called at any time, from any
// goroutine.
func (s *Source) Problems() []error { return s.health.problems() }

// NodeEligible is false if this Node does not exist, is being deleted or is tainted ToBeDeletedByClusterAutoscaler: load
// balancers should no longer send to it. It is true until the first list has arrived. It may be called at any time, from
// any goroutine.
func (s *Source) NodeEligible() bool { return s.eligible.Load() }

// Peers implements [model.WithPeers].
func (s *Source) Peers() (addrs []netip.AddrPort, changed <-chan struct{}) { return s.peers.Peers() }

// demote is a handler that takes warnings, errors and information for debugging messages.
type demote struct{ slog.Handler }

func (h demote) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

func (h demote) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelDebug)
	if !h.Handler.Enabled(ctx, r.Level) { // logr hands errors over without a question
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h demote) WithAttrs(attrs []slog.Attr) slog.Handler { return demote{h.Handler.WithAttrs(attrs)} }

func (h demote) WithGroup(name string) slog.Handler { return demote{h.Handler.WithGroup(name)} }
