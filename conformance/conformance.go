//go:build linux

package conformance

import (
	"log/slog"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
)

// Settings are what a dataplane is configured with for one test.
type Settings struct {
	Logger            *slog.Logger
	LocalDetector     backend.LocalDetector
	NodePortAddresses backend.NodePortAddresses
}

// Dataplane is what the suite checks.
type Dataplane struct {
	// Name is for messages. Required.
	Name string
	// New makes the dataplane. It is called on a thread inside the namespace of the node under test, so the sockets that it
	// opens there stay there; later calls come from anywhere. If what it returns has a method Close() error, that is called
	// at the end. Making it again, after the first one was closed, must take over what the first one left in the kernel.
	// Required.
	New func(Settings) (backend.Backend, error)
	// CheckHost is called at the end of each test, with the dataplane still in place, on a thread inside the node's
	// namespace, for what is not to be seen with packets. Optional.
	CheckHost func(t testing.TB)
	// NewAPI makes what keeps the objects of the cluster in one test, as the named node sees it: stories and histories change
	// them there, and the dataplane follows. Default: they go straight into the store.
	NewAPI func(node string) (API, error)
	// Seeds is the number of random histories. Default: 16.
	Seeds int
	// FirstSeed is the first of them, to repeat a failure. Default: 1.
	FirstSeed uint64
}

// API keeps the objects of a cluster.
type API interface {
	// Source delivers them. Run is called once, before any update, and ends before Close is called.
	source.Source
	// Update makes changes. It returns when the sink of Run has all of them that concern it.
	Update(set []model.Object, deleted []model.Ref) error
	// Close forgets all objects.
	Close() error
}

// Run runs the whole suite. The test's package needs a TestMain with netns.Main, so that it can make namespaces.
func Run(t *testing.T, d Dataplane) {
	t.Run("stories", func(t *testing.T) { RunStories(t, d) })
	t.Run("random", func(t *testing.T) { RunHistories(t, d) })
}
