package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/kubeapi"
)

// nodeCluster is an API server with a Node n, and a configuration that relies on its addresses and pod CIDRs.
func nodeCluster(t *testing.T) (api *kubeapi.Server, c *config.Config, put func(cidrs ...string)) {
	api = kubeapi.New()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c = config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress, c.AdminBindAddress = "n", netip.AddrPort{}, netip.AddrPort{}, config.AdminNowhere
	c.ClientConnection.ContentType, c.ClientConnection.QPS = "application/json", -1
	c.ClientConnection.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	c.DetectLocalMode, c.NodePortAddresses.Primary = config.LocalModeNodeCIDR, true
	text := "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: \"" + server.URL + "\"}}], contexts: [{name: c, context: {cluster: c}}]}"
	if err := os.WriteFile(c.ClientConnection.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return api, c, func(cidrs ...string) {
		n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
		if len(cidrs) > 0 {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
		}
		if err := api.Put([]kubeapi.Object{n}); err != nil {
			t.Fatal(err)
		}
	}
}

// soon returns the first state of a feed, which is there long before a wait for the Node would end.
func soon(t *testing.T, feed state.Feed) *state.Update {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	u, err := feed.Next(ctx, 0)
	if err != nil {
		t.Fatalf("there is no state: %v", err)
	}
	return u
}

// TestFallbackDoesNotWaitForTheNode has the fallback replace a relay while the Node lacks addresses that it had. The
// fallback keeps what it has seen of the Node.
func TestFallbackDoesNotWaitForTheNode(t *testing.T) {
	api, c, put := nodeCluster(t)
	put()
	log := make(logLines, 1000)
	f := &localFallback{last: func() *state.Node { return &state.Node{Name: "n"} }, log: slog.New(slog.NewTextHandler(log, nil)), config: c}
	ctx, cancel := context.WithCancel(t.Context())
	feed, wait := f.start(ctx)
	t.Cleanup(func() {
		cancel()
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
	soon(t, feed)
	addrs, cidrs := []netip.Addr{netip.MustParseAddr("192.0.2.1")}, []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	whole := func(n *state.Node) bool { return slices.Equal(n.Addresses, addrs) && slices.Equal(n.PodCIDRs, cidrs) }
	put("10.244.1.0/24")
	until(t, feed, whole)
	api.Remove("nodes", "n")
	log.until(t, "reason=NodeLost")
	if n := soon(t, feed).Node; !whole(n) {
		t.Errorf("the node that was deleted is %+v", n)
	}
}

// logLines are the lines of a log.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// until waits for a line.
func (l logLines) until(t *testing.T, want string) {
	t.Helper()
	for !strings.Contains(await.Receive(t, want+" is logged", l), want) {
	}
}

// until waits until the node of a feed is as wanted.
func until(t *testing.T, feed state.Feed, wanted func(*state.Node) bool) {
	t.Helper()
	for u := soon(t, feed); !wanted(u.Node); {
		var err error
		if u, err = feed.Next(t.Context(), u.Revision); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyAFirstStateWaitsForTheNode has another configuration take another source while the Node lacks what it had. The Node is then deleted, which is reported, and changes nothing.
func TestOnlyAFirstStateWaitsForTheNode(t *testing.T) {
	api, c, put := nodeCluster(t)
	put("10.244.1.0/24")
	c.API.Listen = []string{"unix://" + filepath.Join(t.TempDir(), "api.sock")}
	logged, awaiting, ready := make(logLines, 1000), &awaiting{}, make(chan struct{})
	log := slog.New(slog.NewTextHandler(logged, nil))
	if a := awaiting.of(c, "n"); !a.Addresses || !a.PodCIDRs {
		t.Errorf("a first state waits for %+v", a)
	}
	n, err := node.New(t.Context(), node.Options{Config: c, Role: node.Server, Logger: log,
		Source: func(c *config.Config, name string) (model.Source, error) {
			return kubeSource(c, "", name, awaiting.of(c, name), log)
		},
		OnReady: func(int) {
			awaiting.over.Store(true)
			close(ready)
		}})
	if err != nil {
		t.Fatal(err)
	}
	background(t, n.Run)
	<-ready
	before := n.Feed()
	put()
	next := *c
	next.ServiceProxyName = "other"
	if err := n.Reconfigure(&next); err != nil {
		t.Fatal(err)
	}
	if n.Feed() == before {
		t.Fatal("the source is the same")
	}
	got := soon(t, n.Feed()).Node
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1")}; !slices.Equal(got.Addresses, want) || len(got.PodCIDRs) != 1 {
		t.Errorf("the node is %+v", got)
	}
	api.Remove("nodes", "n")
	logged.until(t, "reason=NodeLost")
	if now := soon(t, n.Feed()).Node; !now.Equal(got) {
		t.Errorf("the node that was deleted is %+v, want %+v", now, got)
	}
}
