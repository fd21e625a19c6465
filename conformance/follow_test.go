//go:build linux

package conformance_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// TestFaultsOfFollowersAreNoticed has the naive dataplane follow the API, without faults and with those that only one which does can have.
func TestFaultsOfFollowersAreNoticed(t *testing.T) {
	needNft(t)
	for _, c := range []struct{ fault, want string }{
		{"", ""},
		{"failures are not reported", "the dataplane does not report it in Status.failed"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			params := conformance.StoryParams(t, conformance.Dataplane{Name: "naive", Follow: func(ctx context.Context, api string, s conformance.Settings) error {
				n, err := newNaive("")
				if err != nil {
					return err
				}
				defer n.Close()
				f := &naiveFollower{naive: n, fault: c.fault, good: map[state.ServiceName]*state.Service{}}
				return client.RunSink(ctx, client.Options{Target: api, Name: "naive", Logger: s.Logger}, f)
			}})
			params.Files, params.Dir = []string{filepath.Join(params.Dir, "unknown_value.txtar")}, ""
			var result record
			testscript.RunT(&result, params)
			if log := result.log.String(); result.failed != (c.want != "") || !strings.Contains(log, c.want) {
				t.Errorf("failed: %v, want %q in\n%s", result.failed, c.want, log)
			}
		})
	}
}

// naiveFollower gives the naive dataplane what the API serves.
type naiveFollower struct {
	naive  *naive
	fault  string
	good   map[state.ServiceName]*state.Service // what is programmed, or was last if it fails
	failed map[client.ServiceName]error
}

// Apply implements [client.Sink].
func (f *naiveFollower) Apply(ctx context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	node, err := protoconv.ParseNode(c.Node)
	if err != nil {
		return nil, err
	}
	failed := maps.Clone(f.failed)
	if failed == nil {
		failed = map[client.ServiceName]error{}
	}
	for _, m := range c.Changed {
		name := client.NameOf(m)
		delete(failed, name)
		s, err := protoconv.ParseService(m)
		if err != nil {
			failed[name] = err
			continue
		}
		f.good[s.Name] = s
	}
	for _, name := range c.Removed {
		delete(failed, name)
		delete(f.good, state.ServiceName(name))
	}
	taken := map[state.FrontendKey]bool{}
	for name, s := range f.good {
		for i := range s.Ports {
			for j := range s.Ports[i].Frontends {
				if failed[client.ServiceName(name)] == nil {
					taken[s.Ports[i].Key(&s.Ports[i].Frontends[j])] = true
				}
			}
		}
	}
	u := &state.Update{Full: true, Node: node}
	for name, s := range f.good {
		if failed[client.ServiceName(name)] != nil {
			s = s.Without(taken)
			f.good[name] = s
		}
		u.Changed = append(u.Changed, s)
	}
	if _, err := f.naive.Apply(ctx, u); err != nil {
		return nil, fmt.Errorf("naive: %w", err)
	}
	f.failed = failed
	if f.fault == "failures are not reported" {
		return nil, nil
	}
	return failed, nil
}
