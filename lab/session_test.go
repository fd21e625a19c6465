//go:build linux

package lab

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

const shop = "../examples/shop"

func testOptions(t *testing.T, path string, out io.Writer) Options {
	in, err := inputs.New(inputs.Options{Paths: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Inputs: in, Out: out, Size: func() (int, int) { return 0, 0 },
		Dataplane: func(*topology.Lab) (Dataplane, error) { return nftables.New(t.Context(), nftables.Options{}) },
	}
}

func TestTheExampleIsAsItMustBe(t *testing.T) {
	netnstest.Need(t)
	var out strings.Builder
	if err := Once(t.Context(), testOptions(t, shop, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"shop/storefront  storefront-[1 2 3 4]  LoadBalancer, externalTrafficPolicy Local", "refused", "dropped", "203.0.113.77×", "✓ all "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// TestBalanceExamples: a canary gets the share that its weight asks for, and each client of a hash has one endpoint. Clients of a Service with a silent
// endpoint get through. A dataplane that does
// otherwise is found.
func TestBalanceExamples(t *testing.T) {
	netnstest.Need(t)
	even := func(p *state.Port) {
		list := slices.Clone(p.Internal.Inside.Endpoints)
		for i := range list {
			list[i].Weight = 0
		}
		p.Internal.Inside.Endpoints = list
	}
	for _, test := range []struct {
		path string
		bend func(*state.Port)
		want string
	}{
		{"../examples/canary", nil, "✓ all 3 paths are as they must be"},
		{"../examples/canary", even, "connections; its weight asks for 5.0%"},
		{"../examples/zones", nil, "✓ all "},
		{"../examples/zones", even, "connections; its weight asks for 2.5%"},
		{"../examples/hash", nil, "✓ all "},
		{"../examples/hash", func(p *state.Port) { p.Balance = state.Random }, "endpoints answered one client in spite of switchyard.net/balance: hash"},
		{"../examples/black-hole", nil, "✓ all 3 paths are as they must be"},
		{"../examples/black-hole", func(p *state.Port) { p.Ejection = false }, "connections: timed out, want answered"},
		{"../examples/slow-endpoint", nil, "✓ all 3 paths are as they must be"},
		{"../examples/rtp-range", nil, "✓ all 3 paths are as they must be"},
	} {
		var out strings.Builder
		o := testOptions(t, test.path, &out)
		o.Dataplane = func(*topology.Lab) (Dataplane, error) {
			d, err := nftables.New(t.Context(), nftables.Options{})
			if err != nil || d.Features()&state.Balances == 0 || test.bend == nil {
				return d, err
			}
			return bentWithFeatures{bent{d, test.bend}, d.Features()}, nil
		}
		err := Once(t.Context(), o)
		if (err == nil) != (test.bend == nil) || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: %v; the table lacks %q:\n%s", test.path, err, test.want, out.String())
		}
	}
}

// bentWithFeatures is a bent dataplane that knows the features of another one.
type bentWithFeatures struct {
	bent
	features state.Features
}

func (b bentWithFeatures) Features() state.Features { return b.features }

// TestTheExampleWithSocketHooks: it is as it must be with hooks as well, which translate a good part of the connections.
func TestTheExampleWithSocketHooks(t *testing.T) {
	netnstest.Need(t)
	if n, err := ebpf.NewNamespaces(); err != nil {
		t.Skip(err)
	} else {
		n.Close()
	}
	var out strings.Builder
	o := testOptions(t, shop, &out)
	o.Dataplane = func(l *topology.Lab) (Dataplane, error) {
		return sockethooks.NewPair(t.Context(), sockethooks.Of(l), nftables.Options{}, new(atomic.Uint64))
	}
	if err := Once(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	line := regexp.MustCompile(`✓ all \d+ paths are as they must be \((\d+) connections in [\d.]+s, (\d+) of them translated at sockets\)`).FindStringSubmatch(out.String())
	if line == nil {
		t.Fatalf("the table does not say what the hooks have done:\n%s", out.String())
	}
	all, _ := strconv.Atoi(line[1])
	if hooked, _ := strconv.Atoi(line[2]); hooked < all/5 || hooked > all {
		t.Errorf("hooks have translated %d of %d connections", hooked, all)
	}
}

// bent is a dataplane that programs something else than it was sent.
type bent struct {
	Dataplane
	bend func(*state.Port)
}

func (b bent) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	wrong := *u
	wrong.Changed = nil
	for _, svc := range u.Changed {
		s := *svc
		s.Ports = append([]state.Port(nil), svc.Ports...)
		for i := range s.Ports {
			b.bend(&s.Ports[i])
		}
		wrong.Changed = append(wrong.Changed, &s)
	}
	return b.Dataplane.Apply(ctx, &wrong)
}

// TestWrongDataplanesAreFound makes sure that the lab would notice.
func TestWrongDataplanesAreFound(t *testing.T) {
	netnstest.Need(t)
	routes := func(p *state.Port) []*state.Route {
		return []*state.Route{&p.Internal.Inside, &p.Internal.Outside, &p.External.Inside, &p.External.Outside}
	}
	tests := map[string]struct {
		bend func(*state.Port)
		want string
	}{
		// Only the node's own pods answer such a connection: pods of the other node answer the client directly.
		"keeps all sources": {func(p *state.Port) {
			p.Internal.Masquerade = state.MasqueradeNever
			remote := func(e state.Endpoint) bool { return !e.Local }
			if local := slices.DeleteFunc(slices.Clone(p.Internal.Outside.Endpoints), remote); len(local) > 0 {
				p.Internal.Outside.Endpoints = local
			}
		}, "must be replaced by the node's"},
		"masquerades everything": {func(p *state.Port) { p.Internal.Masquerade = state.MasqueradeAlways }, "must be kept"},
		"drops instead of rejecting": {func(p *state.Port) {
			for _, r := range routes(p) {
				if r.Verdict == state.Reject {
					r.Verdict = state.Drop
				}
			}
		}, "timed out, want refused"},
		"forgets an endpoint": {func(p *state.Port) {
			for _, r := range routes(p) {
				if len(r.Endpoints) > 1 {
					r.Endpoints = r.Endpoints[1:]
				}
			}
		}, "never answered"},
		"has no affinity": {func(p *state.Port) { p.Affinity = 0 }, "in spite of sessionAffinity"},
		// The other node's pods answer the client directly, and not as the service: nothing arrives.
		"ignores local policy": {func(p *state.Port) { p.External.Outside = p.External.Inside }, "timed out, want answered"},
	}
	// A part of the example is enough: each wrong connection costs a timeout.
	part := t.TempDir()
	for _, name := range []string{"storefront.yaml", "cart.yaml", "newsletter.yaml"} {
		text, err := os.ReadFile(filepath.Join(shop, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(part, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := testOptions(t, part, io.Discard)
			sound := o.Dataplane
			o.Dataplane = func(l *topology.Lab) (Dataplane, error) {
				b, err := sound(l)
				return bent{b, tt.bend}, err
			}
			err := Once(t.Context(), o)
			surprise, ok := errors.AsType[*SurpriseError](err)
			if !ok || !strings.Contains(strings.Join(surprise.Surprises, "\n"), tt.want) {
				t.Errorf("error = %v, want a surprise that contains %q", err, tt.want)
			}
		})
	}
}

func TestEditsChangeTheLab(t *testing.T) {
	netnstest.Need(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const service = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`
	pod := func(name string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: web}}\nspec: {containers: [{name: c, image: x, ports: [{containerPort: 8080}]}]}\n"
	}
	write("service.yaml", service)
	ctx, cancel := context.WithCancel(t.Context())
	var out await.Log
	done := make(chan error, 1)
	go func() { done <- Live(ctx, testOptions(t, dir, &out)) }()
	shows := func(want string) {
		t.Helper()
		await.Until(t, "the lab shows "+want, func() bool { return strings.Contains(out.String(), want) }, func() any { return out.String() })
	}
	shows("refused")
	write("pods.yaml", pod("first"))
	shows("first×")
	write("pods.yaml", pod("second"))
	shows("second×")
	write("pods.yaml", "kind: [")
	shows("pods.yaml:")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Live = %v, want nil after cancellation", err)
	}
}

// TestProgress: what is under way before the first table is said, pod by pod; manifests that cannot be read end it before anything runs.
func TestProgress(t *testing.T) {
	netnstest.Need(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: web}}, spec: {containers: [{name: c, image: x, ports: [{containerPort: 8080}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: web}}, spec: {containers: [{name: c, image: x, ports: [{containerPort: 8080}]}]}}
`)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var said []string
	show := func(message any, _ bool) {
		switch m := message.(type) {
		case progressMsg:
			said = append(said, strings.TrimPrefix(string(m), "switchyard lab: "))
		case viewMsg:
			end()
		}
	}
	if err := follow(ctx, testOptions(t, path, nil), show); err != nil {
		t.Fatal(err)
	}
	want := []string{"making the nodes for 2 pods", "1 of 2 pods started", "2 of 2 pods started", "connecting to 1 Service"}
	if !slices.Equal(said, want) {
		t.Errorf("progress = %q, want %q", said, want)
	}
	write("kind: [")
	said = nil
	if err := follow(t.Context(), testOptions(t, path, nil), show); err == nil || !strings.Contains(err.Error(), "web.yaml:") || len(said) > 0 {
		t.Errorf("error = %v, after %q", err, said)
	}
}

// TestErrorsNeedNoScreen: manifests that cannot be read leave the terminal as it is.
func TestErrorsNeedNoScreen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(path, []byte("kind: ["), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o := testOptions(t, path, &out)
	o.Size = func() (int, int) { return 80, 24 }
	if err := onTerminal(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "web.yaml:1") {
		t.Errorf("error = %v", err)
	}
	if out.Len() > 0 {
		t.Errorf("the terminal got %q", out.String())
	}
}

func TestNothingToRun(t *testing.T) {
	dir := t.TempDir()
	err := Once(t.Context(), testOptions(t, dir, io.Discard))
	if err == nil || !strings.Contains(err.Error(), "put files named *.yaml") {
		t.Errorf("error = %v", err)
	}
}
