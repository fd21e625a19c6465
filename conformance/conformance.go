//go:build linux

package conformance

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// Settings are the configuration of a dataplane for one test. They do not say which clients are pods, or where NodePorts are served. The
// node has these settings ([state.Node]), and the stories change them.
type Settings struct {
	Logger *slog.Logger
	// Output takes what a process of the dataplane prints. The end of it is shown where a story or history fails.
	Output io.Writer
	// OnNamespace calls fn inside the network namespace of the node under test and of each pod on it, now and when pods are added. isNode
	// distinguishes the node from its pods. OnNamespace is for dataplanes whose programs see the processes of all nodes of the lab. It returns
	// the result of fn.
	OnNamespace func(fn func(isNode bool) error) error
}

// Dataplane is what the suite checks. It has either New, if it runs in the process of the brain, or Follow, if it follows the
// node-local API.
type Dataplane struct {
	// Name is for messages. Required.
	Name string
	// New makes the dataplane. It is called on a thread inside the namespace of the node under test, so the sockets
	// that it opens there stay there. Later calls come from any thread. If the backend has a method Close() error,
	// Close is called at the end. A backend that is made after the first one was closed must take over everything that
	// the first one left in the kernel.
	New func(Settings) (backend.Backend, error)
	// Follow keeps the node in step with the node-local API (switchyard.localnet.v1) until ctx ends. The API is served
	// at the target api, a unix socket. Follow reports the applied state in WatchRequest.status. A return before ctx
	// ends is a failure; a return afterwards is not. It is called on a thread inside the namespace of the node under
	// test. Processes that it starts from there are also inside, and so is [client.Sink.Apply] if Follow is a call of
	// [client.RunSink]; other goroutines are not. It may be called again after it has returned. Then it must take over
	// everything that it left in the kernel. In between, the node must go on to serve connections.
	//
	// [client.Sink.Apply]: https://pkg.go.dev/github.com/switchyard-net/switchyard/client#Sink
	// [client.RunSink]: https://pkg.go.dev/github.com/switchyard-net/switchyard/client#RunSink
	Follow func(ctx context.Context, api string, s Settings) error
	// CheckHost is called at the end of each test, with the dataplane still in place, on a thread inside the node's
	// namespace. It checks properties that packets cannot show. Optional.
	CheckHost func(t testing.TB)
	// NewAPI makes the store for the objects of the cluster in one test, as the named node sees it. Stories and histories change the objects
	// there, and the dataplane follows. Default: objects go directly into the store of the node's state.
	NewAPI func(node string) (API, error)
	// Limits are what the dataplane cannot do.
	Limits []Limit
	// SharesTables says that the dataplane's rules are in iptables-nft's tables of nf_tables, together with other
	// programs' rules. It leaves the other rules alone, but a listing of such a table shows more.
	SharesTables bool
	// Edge says that the node takes part in the edge ([state.Edge]). It takes packets that other nodes hand over, at UDP port [EdgePort].
	// The stories named edge_* are about that, and are left out otherwise. In all others and in the histories, the edge takes what it can. That is each port
	// for clients outside whose endpoints are all on the node. Where such a port would be masqueraded, the servers must see the client.
	Edge bool
	// Detector is how the node recognizes pods in stories that do not say, in the words of their command cluster, such as node-cidr or
	// prefix:pod. Default: cluster-cidr.
	Detector string
	// Seeds is the number of random histories. Default: 16.
	Seeds int
	// FirstSeed is the first of them, to repeat a failure. Default: 1.
	FirstSeed uint64

	// claims are checked at the end of stories, and of histories.
	claims *claims
}

// EdgePort is where nodes of the cluster take packets that others hand over, if they take part in the edge.
const EdgePort = 7635

// API keeps the objects of a cluster.
type API interface {
	// Source delivers them. Run is called once, before any update, and ends before Close is called.
	model.Source
	// Update makes changes. It returns when the sink of Run has all of them that concern it.
	Update(set []model.Object, deleted []model.Ref) error
	// Close forgets all objects.
	Close() error
}

// Main is for the TestMain function of a package whose tests call Run: os.Exit(conformance.Main(m)). The tests need network namespaces.
// Main runs them in this process if it can make namespaces. Otherwise it runs them in a user namespace where the system allows that. With
// -short, the tests of the suite are skipped.
func Main(m *testing.M) int { return netnstest.Main(m) }

// Run runs the whole suite. The test's package needs a TestMain with [Main].
func Run(t *testing.T, d Dataplane) {
	t.Run("stories", func(t *testing.T) { RunStories(t, d) })
	t.Run("random", func(t *testing.T) { RunHistories(t, d) })
}
