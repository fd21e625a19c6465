package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/lastknown"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// agreement is a feed of states that are made elsewhere. Their node has the settings that count here: which clients are
// pods, and where NodePorts are served. The settings of c count most, then the settings of the state. Then come the
// defaults of c. They are for states of an earlier version, which have no settings, and of a later one, whose settings
// are unknown here.
type agreement struct {
	state.Feed
	log       *slog.Logger
	fieldName func(path string) string

	mu        sync.Mutex // guards all below
	config    *config.Config
	from, to  *state.Node // the last answer
	overrides []error     // settings of config that the state has differently
	kept      []error     // fields of the node that the state no longer has
}

func (a *agreement) set(c *config.Config) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config, a.from = c, nil
}

// Next implements [state.Feed].
func (a *agreement) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	u, err := a.Feed.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	agreed := *u
	agreed.Node = a.node(u.Node)
	return &agreed, nil
}

// node returns n with the settings that count: the same pointer for the same node.
func (a *agreement) node(n *state.Node) *state.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n == a.from {
		return a.to
	}
	to, before := *n, fmt.Sprint(a.overrides)
	a.overrides = nil
	a.keep(&to)
	detector, nodePorts := ownSettings(a.config)
	to.LocalDetector = agree(a, "detectLocal", detector, n.LocalDetector, a.config.LocalDetector())
	to.NodePorts = agree(a, "nodePortAddresses", nodePorts, n.NodePorts, a.config.NodePorts())
	if now := fmt.Sprint(a.overrides); now != before {
		for _, o := range a.overrides {
			a.log.Warn("the configuration of this process overrides a setting of the API", "problem", o)
		}
	}
	if n.LocalDetector == nil && detector == nil {
		a.log.Warn("the API does not say which clients are pods in a way that is known here; no client is taken for a pod", "remedy",
			"upgrade the server, or this process if it is the older of the two, or set "+a.fieldName("detectLocal"))
	}
	a.from, a.to = n, &to
	return a.to
}

// keep keeps the pod CIDRs of the last answer if the node has none left, and the addresses of a family likewise. The
// server may have started while the Node lacks them.
func (a *agreement) keep(to *state.Node) {
	last, before := a.to, len(a.kept)
	a.kept = nil
	if last == nil || last.Name != to.Name {
		return
	}
	lost := func(field string, kept any) {
		a.kept = append(a.kept, fmt.Errorf("the API has lost %s of this Node; the last known ones stay in effect: %v; see what sets that field; if it is meant so, restart this process", field, kept))
	}
	all := func(n *state.Node) *model.Node {
		return &model.Node{Addresses: n.Addresses, Internal: len(n.Addresses)}
	}
	if addrs, _ := lastknown.Addresses(all(last), all(to)); len(addrs) > len(to.Addresses) {
		to.Addresses = addrs
		lost("status.addresses", to.Addresses)
	}
	if len(to.PodCIDRs) == 0 && len(last.PodCIDRs) > 0 {
		to.PodCIDRs = last.PodCIDRs
		lost("spec.podCIDRs", to.PodCIDRs)
	}
	if len(a.kept) > 0 && before == 0 {
		a.log.Warn("the API has lost fields of this node", "problem", errors.Join(a.kept...))
	}
}

// agree returns the setting that counts: own, if it is set, else the API's, else the default.
func agree[T interface {
	Equal(T) bool
	fmt.Stringer
}](a *agreement, path string, own, api *T, otherwise T) *T {
	switch {
	case own == nil && api == nil:
		return &otherwise
	case own == nil:
		return api
	case api != nil && !(*own).Equal(*api):
		a.overrides = append(a.overrides, fmt.Errorf("%s is %v here and %v at the server of the API, and the value here counts: "+
			"leave it out here, or set the same at both", a.fieldName(path), *own, *api))
	}
	return own
}

// problems are the settings that this process has otherwise than the API, and what the API has lost.
func (a *agreement) problems() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(a.overrides, a.kept)
}

// ownSettings returns the settings that c itself has, nil for those that it leaves to the API.
func ownSettings(c *config.Config) (detector *state.LocalDetector, nodePorts *state.NodePortAddresses) {
	if d := c.LocalDetector(); d.Enabled() {
		detector = &d
	}
	if len(c.NodePortAddresses.Strings()) > 0 {
		nodePorts = new(c.NodePorts())
	}
	return detector, nodePorts
}

// FallbackConfig is [BrainConfig] for a brain that stands in for the server of an API, whose states had the node last. The settings
// that c lacks are as they were there.
func FallbackConfig(c *config.Config, name string, last *state.Node) brain.Config {
	b := BrainConfig(c, name)
	detector, nodePorts := ownSettings(c)
	if detector == nil && last.LocalDetector != nil {
		b.LocalDetector = *last.LocalDetector
	}
	if nodePorts == nil && last.NodePorts != nil {
		b.NodePorts = *last.NodePorts
	}
	return b
}
