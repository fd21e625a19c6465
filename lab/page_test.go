//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"github.com/switchyard-net/switchyard/internal/admin/ui"
	nodeview "github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestPage: a browser sees the Services of the lab, and how each connection of the newest round went.
func TestPage(t *testing.T) {
	netnstest.Need(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out await.Log
	o := testOptions(t, shop, &out)
	o.Page, o.Mode = l, "nftables"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Live(ctx, o) }()
	ask := func(path string, to any) {
		t.Helper()
		resp, err := http.Get("http://" + l.Addr().String() + "/api/" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(to); err != nil {
			t.Error(err)
		}
	}
	var detail struct {
		Service   nodeview.Service
		Endpoints []nodeview.Endpoint
		Paths     []ui.Path
	}
	await.Until(t, "the page has a round of connections", func() bool {
		ask("service?key=shop/storefront", &detail)
		return len(detail.Paths) > 0
	}, func() any { return out.String() })
	answered, outside := map[string]int{}, 0
	for _, p := range detail.Paths {
		if len(p.Faults) > 0 {
			t.Errorf("%+v is not as it must be", p)
		}
		if p.Outside {
			outside++
		}
		for addr, n := range p.Endpoints {
			answered[addr] += n
		}
	}
	for _, e := range detail.Endpoints {
		if addr := e.Addr.String(); e.Inside && answered[addr] == 0 {
			t.Errorf("endpoint %s is in use, and has answered nothing: %v", addr, answered)
		}
	}
	if outside == 0 || outside == len(detail.Paths) {
		t.Errorf("%d of %d paths are from outside", outside, len(detail.Paths))
	}
	var status struct {
		Page string
		nodeview.Status
	}
	ask("status", &status)
	if status.Page != "lab" || status.Node != nodeName || status.Mode != "nftables" || !status.Healthy || status.Applied != status.Revision || status.Services == 0 {
		t.Errorf("the status is %+v", status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Live = %v", err)
	}
	if _, err := http.Get("http://" + l.Addr().String() + "/"); err == nil {
		t.Error("the lab has ended, and its page answers")
	}
}
