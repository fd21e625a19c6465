//go:build linux

package conformance

import (
	"context"
	"embed"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

//go:embed stories/*.txtar
var stories embed.FS

// RunStories runs the stories only.
func RunStories(t *testing.T, d Dataplane) {
	netnstest.Need(t)
	if note := d.noSCTP(); note != "" {
		fmt.Fprintln(os.Stderr, note)
	}
	testscript.Run(t, storyParams(t.Context(), unpacked(t, d), d.tracked(t)))
}

func storyParams(ctx context.Context, dir string, d Dataplane) testscript.Params {
	return testscript.Params{
		Dir:                dir,
		RequireUniqueNames: true,
		Condition: func(name string) (bool, error) {
			switch name {
			case "sctp":
				return topology.HasSCTP(), nil
			case "api":
				return d.Follow != nil, nil
			case "shares-tables":
				return d.SharesTables, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Setup: func(env *testscript.Env) error {
			s := newStory(ctx, d)
			env.Values[storyKey{}] = s
			s.skip = env.T().Skip
			env.Defer(func() { s.end(env.T()) })
			return nil
		},
		Cmds: commands(),
	}
}

// unpacked returns a directory with the stories of a dataplane.
func unpacked(t *testing.T, d Dataplane) string {
	t.Helper()
	dir := t.TempDir()
	if err := unpack(dir, d); err != nil {
		t.Fatal(err)
	}
	return dir
}

type storyKey struct{}

// story is what a running story knows.
type story struct {
	ctx       context.Context // ends all but the taking down
	dataplane Dataplane
	skip      func(args ...any)
	cluster   *cluster
	hosts     map[string]*topology.Host
	otherNode map[string]bool           // pods that are on the other node
	manyUsed  int                       // addresses of pods with several
	mu        sync.Mutex                // guards nextPorts
	nextPorts map[*topology.Host]uint16 // the next source port for connect
	servers   map[string][]string       // names of the servers on each host
	services  map[string]*model.Service // by name, in namespace default
	flows     map[string][]*openFlow
	surveys   map[string]map[visit]answered
	loads     map[string]*load
	slices    map[string][]string // names of the endpoint slices of each service
	// weights are the weights of servers, 0 without one, and refused is the weight of the refused share.
	weights map[string]float64
	refused float64
	silent  map[string]bool // hosts that answer nothing
}

func newStory(ctx context.Context, d Dataplane) *story {
	return &story{
		ctx:       ctx,
		dataplane: d,
		hosts:     map[string]*topology.Host{},
		otherNode: map[string]bool{},
		servers:   map[string][]string{},
		nextPorts: map[*topology.Host]uint16{},
		services:  map[string]*model.Service{},
		flows:     map[string][]*openFlow{},
		surveys:   map[string]map[visit]answered{},
		loads:     map[string]*load{},
		slices:    map[string][]string{},
		weights:   map[string]float64{},
		silent:    map[string]bool{},
	}
}

// end checks the host and takes everything down.
func (s *story) end(t testscript.T) {
	for _, flows := range s.flows {
		closeAll(flows)
	}
	for _, l := range s.loads {
		l.end()
	}
	if s.cluster == nil {
		return
	}
	if tb, ok := t.(testing.TB); ok && !tb.Failed() {
		checkHost(tb, s.cluster)
	}
	if err := s.cluster.close(); err != nil {
		t.Log(err)
		t.FailNow()
	}
}

// checkHost lets the dataplane look at its host.
func checkHost(t testing.TB, c *cluster) {
	if c.dataplane.CheckHost == nil {
		return
	}
	err := c.lab.Node().Do(func() error { c.dataplane.CheckHost(t); return nil })
	if err != nil {
		t.Error(err)
	}
}

// command is one command of the stories' language. An error fails the story.
type command func(s *story, ts *testscript.TestScript, args []string) error

func commands() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	list := map[string]command{
		"cluster":         (*story).startCluster,
		"needs":           (*story).needs,
		"pod":             (*story).addPod,
		"remove-pod":      (*story).removePod,
		"serve":           (*story).serve,
		"apply":           (*story).apply,
		"delete":          (*story).delete,
		"endpoints":       (*story).endpoints,
		"unknown":         (*story).makeUnknown,
		"refuse":          (*story).refuse,
		"silence":         (*story).silence,
		"zone":            (*story).zone,
		"shut-down":       (*story).shutDown,
		"configure":       (*story).configure,
		"address":         (*story).address,
		"leak-loopback":   (*story).leakLoopback,
		"tunnel":          (*story).tunnel,
		"hand-over":       (*story).handOver,
		"stray":           (*story).stray,
		"restart":         (*story).restart,
		"stop-dataplane":  (*story).stopDataplane,
		"start-dataplane": (*story).startDataplane,
		"run":             (*story).run,
		"pause":           (*story).pause,
		"connect":         (*story).connect,
		"ping":            (*story).ping,
		"open":            (*story).open,
		"talk":            (*story).talk,
		"close":           (*story).closeFlows,
		"survey":          (*story).survey,
		"load":            (*story).startLoad,
		"unload":          (*story).endLoad,
	}
	list["tunnel-is-untouched"] = (*story).checkTunnel
	list["soon"] = soon(list)
	cmds := map[string]func(ts *testscript.TestScript, neg bool, args []string){}
	for name, run := range list {
		cmds[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("%s cannot be negated: name what is expected", name)
			}
			s := ts.Value(storyKey{}).(*story)
			if s.cluster == nil && name != "cluster" {
				ts.Fatalf("%s: a story begins with: cluster", name)
			}
			err := s.ctx.Err()
			if err == nil {
				err = run(s, ts, args)
			}
			if err != nil {
				if s.cluster != nil {
					ts.Logf("%s%s", s.cluster.recorder.Explain(), s.cluster.output.String())
				}
				ts.Fatalf("%s: %v", name, err)
			}
		}
	}
	return cmds
}

// soonTimeout is how long soon tries. It is only used up by a fault.
const soonTimeout = 10 * time.Second

// soon is the command that repeats another one until it succeeds: soon [within=DURATION] COMMAND...
func soon(list map[string]command) command {
	return func(s *story, ts *testscript.TestScript, args []string) error {
		timeout := soonTimeout
		if len(args) > 0 {
			if text, ok := strings.CutPrefix(args[0], "within="); ok {
				var err error
				if timeout, err = time.ParseDuration(text); err != nil {
					return err
				}
				args = args[1:]
			}
		}
		if len(args) == 0 || list[args[0]] == nil {
			return fmt.Errorf("usage: soon [within=DURATION] COMMAND …")
		}
		deadline := time.Now().Add(timeout)
		for {
			err := list[args[0]](s, ts, args[1:])
			if err == nil || time.Now().After(deadline) || s.sleep(20*time.Millisecond) != nil {
				return err
			}
		}
	}
}

// sleep waits, and fails if the story is ended before.
func (s *story) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
