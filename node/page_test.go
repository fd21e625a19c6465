package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestPage: a node shows itself to browsers where its configuration says, which may change, and an address that is taken ends nothing.
func TestPage(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress, c.AdminBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}, config.AdminNowhere
	c.UIBindAddress = netip.MustParseAddrPort(taken.Addr().String())
	goOn, ready := make(chan struct{}), make(chan int, 1)
	close(goOn)
	m := &countingMemory{memory: newMemory(10)}
	n, err := node.New(t.Context(), node.Options{
		Config: c, OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
		Source:    func(_ *config.Config, name string) (model.Source, error) { return &fakeSource{name, goOn}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	_, stop := start(t, n)
	<-ready

	moved := *c
	moved.UIBindAddress = freeAddress(t)
	if err := n.Reconfigure(&moved); err != nil {
		t.Fatal(err)
	}
	ask := func(path string, to any) error {
		resp, err := http.Get("http://" + moved.UIBindAddress.String() + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(to)
	}
	var status view.Status
	await.Until(t, "the page answers", func() bool { return ask("/api/status", &status) == nil })
	if status.Node != "node-a" || status.Services != 1 || status.Applied != status.Revision {
		t.Errorf("the status is %+v", status)
	}
	var changes struct {
		Items []struct {
			Full    bool
			Changed int
		}
	}
	if err := ask("/api/changes", &changes); err != nil || len(changes.Items) == 0 || !changes.Items[0].Full || changes.Items[0].Changed != 1 {
		t.Errorf("the log is %+v, %v", changes, err)
	}

	if n := m.readings.Load(); n != 0 {
		t.Errorf("nobody has asked for connections, and they were read %d times", n)
	}
	var detail struct {
		Graph   *struct{ Known []bool }
		Comings *struct{ Items []any }
	}
	if err := ask("/api/service?key=shop/web", &detail); err != nil || detail.Graph == nil || len(detail.Graph.Known) != 60 || detail.Comings == nil {
		t.Errorf("the Service is %+v, %v", detail, err)
	}
	began := time.Now()
	for range 5 {
		if err := ask("/api/service?key=shop/web", &detail); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.readings.Load(); n != 1 && time.Since(began) < 4*time.Second {
		t.Errorf("connections were read %d times within five seconds", n)
	}

	off := moved
	off.UIBindAddress = netip.AddrPort{}
	if err := n.Reconfigure(&off); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the page that is turned off does not answer", func() bool { return ask("/api/status", &status) != nil })
	stop()
}

// countingMemory is a dataplane in memory that has counted a connection to each frontend whenever it is asked.
type countingMemory struct {
	*memory
	readings atomic.Uint64
}

func (m *countingMemory) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	counts := make([]backend.Counts, len(keys))
	for i, n := 0, m.readings.Add(1); i < len(keys); i++ {
		counts[i].Connections = n
	}
	return counts, nil
}

// TestMetricsBetweenSources: metrics are answered while the objects come from elsewhere, and are not complete there for long.
func TestMetricsBetweenSources(t *testing.T) {
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress, c.AdminBindAddress = "node-a", netip.AddrPort{}, freeAddress(t), config.AdminNowhere
	there := map[string]chan struct{}{"node-a": make(chan struct{}), "node-b": make(chan struct{})}
	close(there["node-a"])
	ready := make(chan int, 1)
	m := &countingMemory{memory: newMemory(10)}
	n, err := node.New(t.Context(), node.Options{
		Config: c, OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
		Source:    func(_ *config.Config, name string) (model.Source, error) { return &fakeSource{name, there[name]}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	_, stop := start(t, n)
	<-ready
	client := http.Client{Timeout: 30 * time.Second}
	shows := func(when string, least uint64) {
		t.Helper()
		var text []byte
		await.Until(t, fmt.Sprintf("%s, the metrics show %d connections", when, least), func() bool {
			resp, err := client.Get("http://" + c.MetricsBindAddress.String() + "/metrics")
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			var shown uint64
			_, series, _ := strings.Cut(string(text), `switchyard_service_connections_total{namespace="shop",port="80",service="web"} `)
			_, err = fmt.Sscan(series, &shown)
			return err == nil && shown >= least
		}, func() any { return string(text) })
	}
	shows("at first", 1)
	moved := *c
	moved.HostnameOverride = "node-b"
	if err := n.Reconfigure(&moved); err != nil {
		t.Fatal(err)
	}
	read := m.readings.Load()
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; { // counts are read again after a second
		shows("meanwhile", read)
	}
	close(there["node-b"])
	shows("when all objects are known", read+1)
	stop()
}
