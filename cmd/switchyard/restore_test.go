package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/kubeapi"
)

// servicesOf returns what an update that is whole has, as "name:port".
func servicesOf(u *state.Update) (list []string) {
	for _, s := range u.Changed {
		for i := range s.Ports {
			list = append(list, fmt.Sprintf("%s:%d", s.Name.Name, s.Ports[i].Frontends[0].Port))
		}
	}
	slices.Sort(list)
	return list
}

// awaitServices waits until a feed has the services, as "name:port".
func awaitServices(t *testing.T, what string, feed state.Feed, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []string
	for after := state.Revision(0); ; {
		if _, err := feed.Next(ctx, after); err != nil { // something is newer
			t.Fatalf("%s: the services are %v, want %v: %v", what, got, want, err)
		}
		u, err := feed.Next(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got = servicesOf(u); slices.Equal(got, want) {
			return
		}
		after = u.Revision
	}
}

// serviceOf returns the Service that "name:port" means.
func serviceOf(text string) *corev1.Service {
	var port int32
	name, number, _ := strings.Cut(text, ":")
	_, _ = fmt.Sscan(number, &port)
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.0.%d", name[0]), Ports: []corev1.ServicePort{{Port: port}}},
	}
}

// TestRestoredAPIServer takes the API server back to an earlier state. A server, a follower of a relay, a relay below
// the follower, and the names must all have the API server's new state. In one case the API server's versions are
// behind the earlier ones, in the other beyond them.
func TestRestoredAPIServer(t *testing.T) {
	for title, since := range map[string]int{"behind": 0, "beyond": 20} {
		t.Run(title, func(t *testing.T) { restored(t, since) })
	}
}

func restored(t *testing.T, since int) {
	api := kubeapi.New()
	put := func(services ...string) {
		for _, s := range services {
			if err := api.Put([]kubeapi.Object{serviceOf(s)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("a:80", "b:80", "c:80")
	var away atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close) // after all that watch
	start := func(role node.Role) (n *node.Node, socket string) {
		c := config.Default()
		c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress, c.AdminBindAddress = "n", netip.AddrPort{}, netip.AddrPort{}, config.AdminNowhere
		c.ClientConnection.ContentType, c.ClientConnection.QPS = "application/json", -1
		socket = "unix://" + filepath.Join(t.TempDir(), "api.sock")
		c.API.Listen, c.API.Names = []string{socket}, role == node.Server
		log := slog.New(slog.DiscardHandler)
		n, err := node.New(t.Context(), node.Options{Config: c, Role: role, Logger: log,
			Source: func(c *config.Config, name string) (model.Source, error) {
				return kubeSource(c, server.URL, name, kube.Await{}, log)
			}})
		if err != nil {
			t.Fatal(err)
		}
		background(t, n.Run)
		return n, socket
	}
	n, socket := start(node.Server)
	_, upper := start(node.Relay)

	follower, err := apifollower.New(apifollower.Options{Client: client.Options{Target: upper, Node: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	background(t, follower.Run)
	below := store.New(store.Options{Brain: brain.Config{NodeName: "n"}})
	src, err := relay.New(relay.Options{Targets: []string{upper}})
	if err != nil {
		t.Fatal(err)
	}
	sink := below.Source("relay")
	background(t, func(ctx context.Context) error { return src.Run(ctx, sink) })
	var mu sync.Mutex
	named, changed := map[string]bool{}, make(chan struct{}, 1)
	background(t, func(ctx context.Context) error {
		return client.RunNames(ctx, client.Options{Target: socket}, func(u *client.NamesUpdate) {
			mu.Lock()
			defer mu.Unlock()
			if u.Full {
				clear(named)
			}
			for _, s := range u.Changed {
				named[s.Name] = true
			}
			for _, s := range u.Removed {
				delete(named, s.Name)
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	expect := func(want ...string) {
		t.Helper()
		awaitServices(t, "the server", n.Feed(), want...)
		awaitServices(t, "the follower of the relay", follower, want...)
		awaitServices(t, "the relay below", below, want...)
		for timeout := time.After(time.Minute); ; {
			mu.Lock()
			right := len(named) == len(want) && !slices.ContainsFunc(want, func(s string) bool { return !named[s[:1]] })
			mu.Unlock()
			if right {
				return
			}
			select {
			case <-changed:
			case <-timeout:
				t.Fatalf("the names are %v, want those of %v", named, want)
			}
		}
	}

	expect("a:80", "b:80", "c:80")
	backup := api.Version()
	api.Remove("services", "a")
	put("b:81", "d:80")
	expect("b:81", "c:80", "d:80")
	away.Store(true)
	api.Restore(backup)
	after := []string{"a:80", "b:80", "c:85"}
	for i := range since {
		put(fmt.Sprintf("e:%d", 90+i))
	}
	if since > 0 {
		after = append(after, fmt.Sprintf("e:%d", 89+since))
	}
	put("c:85")
	away.Store(false)
	expect(after...)
	put("f:80")
	expect(append(after, "f:80")...)
}

// background runs something until the test ends.
func background(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
}
