//go:build linux

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

var (
	restores    = flag.Int("restores", 2, "how often TestRestores restores etcd")
	restoreSeed = flag.Uint64("restore-seed", 107457, "what TestRestores changes")
)

const (
	// restoredNode is the node whose state is compared.
	restoredNode = "n"
	// restoreTimeout is how long what is served may differ from what the API server has. The Reflector waits up to 30 s before it connects again.
	restoreTimeout = 2 * time.Minute
)

// TestRestores restores a real etcd again and again: it is copied, objects change, and the copy replaces it and goes
// on with other changes. A node and a relay must then serve the API server's state.
func TestRestores(t *testing.T) {
	options := controlplane.Options{Dir: t.TempDir(), ServiceCIDRs: "10.98.0.0/16"}
	c, err := controlplane.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	api, err := apicluster.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := kube.NewReader(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	cfg := brain.Config{NodeName: restoredNode}
	node, cluster := store.New(store.Options{Brain: cfg}), store.NewCluster(store.ClusterOptions{})
	nodeSink, clusterSink := node.Source("kube"), cluster.Source("kube")
	follow := func(o kube.Options, run func(context.Context, *kube.Source) error) {
		o.Config = c.Config()
		s, err := kube.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx, s) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	follow(kube.Options{NodeName: restoredNode}, func(ctx context.Context, s *kube.Source) error { return s.Run(ctx, nodeSink) })
	follow(kube.Options{AllNodes: true}, func(ctx context.Context, s *kube.Source) error { return s.Run(ctx, clusterSink) })

	rng := rand.New(rand.NewPCG(*restoreSeed, 0))
	t.Logf("seed %d", *restoreSeed)
	change := func(n int) {
		for range n {
			if err := changeSomething(t.Context(), api, rng); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare := func(when string) {
		t.Helper()
		deadline := time.Now().Add(restoreTimeout)
		for {
			want, err := served(t.Context(), reader, cfg)
			if err == nil {
				err = differ(t.Context(), want, map[string]state.Feed{"the node": node, "the relay": cluster.Node(restoredNode)})
			}
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", when, err)
			}
			time.Sleep(100 * time.Millisecond) // the API server does not say when it has changed
		}
	}
	// The Node is there from the start and stays: a node keeps what it knows of one that is gone.
	if _, err := api.Set(t.Context(), &model.Node{Name: restoredNode, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Internal: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range *restores {
		change(1 + rng.IntN(5))
		backup := filepath.Join(t.TempDir(), "backup")
		if err := c.Backup(backup); err != nil {
			t.Fatal(err)
		}
		change(1 + rng.IntN(5))
		compare(fmt.Sprintf("before restore %d", i))
		if err := c.Restore(t.Context(), backup, options); err != nil {
			t.Fatal(err)
		}
		change(rng.IntN(8))
		compare(fmt.Sprintf("after restore %d", i))
		change(1)
		compare(fmt.Sprintf("after another change since restore %d", i))
	}
}

// changeSomething sets or deletes a Service, an EndpointSlice or the Node. It tries again while the API server has no etcd.
func changeSomething(ctx context.Context, api *apicluster.Client, rng *rand.Rand) (err error) {
	n := rng.IntN(6)
	name := fmt.Sprint("s", n)
	service := &model.Service{
		Name: state.ServiceName{Namespace: "shop", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 98, 1, byte(n)})},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: uint16(1 + rng.IntN(60000))}},
	}
	slice := &model.EndpointSlice{
		Namespace: "shop", Name: name, Service: name, Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}},
		Endpoints: []model.Endpoint{{Addr: netip.AddrFrom4([4]byte{10, 244, byte(rng.IntN(256)), 1}), Ready: true, Serving: true}},
	}
	node := &model.Node{Name: restoredNode, Zone: fmt.Sprint("z", rng.IntN(100)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + rng.IntN(200))})}, Internal: 1}
	what, remove := rng.IntN(9), rng.IntN(3) == 0
	objects := []model.Object{service, service, service, service, slice, slice, slice, slice, node}
	o := objects[what]
	for range 100 {
		if remove && what < 8 {
			err = api.Delete(ctx, o.Ref())
		} else {
			_, err = api.Set(ctx, o)
		}
		if err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%v: %w", o.Ref(), err)
}

// served returns what a node serves of the objects that the API server has now.
func served(ctx context.Context, reader *kube.Reader, cfg brain.Config) (*state.Update, error) {
	objects, err := reader.Routing(ctx)
	if err != nil {
		return nil, err
	}
	s := store.New(store.Options{Brain: cfg})
	defer s.Close()
	sink := s.Source("list")
	var all []model.Object
	for _, o := range objects {
		m, ok, err := kubeconv.Object(o)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, m)
		}
	}
	sink.Update(all, nil)
	sink.Complete()
	return s.Next(ctx, 0)
}

// differ returns what one of the feeds has otherwise.
func differ(ctx context.Context, want *state.Update, feeds map[string]state.Feed) error {
	for what, feed := range feeds {
		got, err := feed.Next(ctx, 0)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(got.Changed, want.Changed, (*state.Service).Equal) {
			return fmt.Errorf("%s serves %s, the API server has %s", what, names(got), names(want))
		}
		if !slices.Equal(got.Node.Addresses, want.Node.Addresses) || !slices.Equal(got.Node.ServiceCIDRs, want.Node.ServiceCIDRs) {
			return fmt.Errorf("%s has the node %+v, the API server %+v", what, got.Node, want.Node)
		}
	}
	return nil
}

func names(u *state.Update) (list []string) {
	for _, s := range u.Changed {
		var text strings.Builder
		text.WriteString(s.Name.Name)
		for i := range s.Ports {
			text.WriteString(fmt.Sprint(" ", s.Ports[i].Frontends[0].Port, s.Ports[i].Internal.Outside.Endpoints))
		}
		list = append(list, text.String())
	}
	return list
}
