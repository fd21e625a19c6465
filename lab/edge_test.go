//go:build linux

package lab

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// edgeOptions are the options of a lab with the edge. It skips the test where the edge cannot run.
func edgeOptions(t *testing.T, path string, out *strings.Builder) Options {
	t.Helper()
	netnstest.Need(t)
	err := EdgeAvailable()
	if refused, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Skip(err)
	}
	o := testOptions(t, path, out)
	o.Edge = true
	o.Dataplane = func(*topology.Lab) (Dataplane, error) {
		return nftables.New(t.Context(), nftables.Options{Edge: EdgeMark})
	}
	return o
}

// TestEdgeExample: pods of the Service that the edge takes see clients from outside, whichever node they are on. All others see the node. The table counts the
// connections that were handed over.
func TestEdgeExample(t *testing.T) {
	var out strings.Builder
	if err := Once(t.Context(), edgeOptions(t, "../examples/edge", &out)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	number := func(text string) int { n, _ := strconv.Atoi(text); return n }
	sum, rows := 0, regexp.MustCompile(` client +\S+ .* kept +(\d+) of (\d+) `).FindAllStringSubmatch(out.String(), -1)
	for _, row := range rows {
		over, all := number(row[1]), number(row[2])
		if sum += over; over == 0 || over >= all { // two of three pods are on other nodes
			t.Errorf("%d of %d connections were handed over", over, all)
		}
	}
	cart, webTable, _ := strings.Cut(out.String(), "\nedge/web ")
	if len(rows) != 2 || strings.Contains(cart, " of ") || strings.Count(webTable, " of ") != 3 {
		t.Errorf("%d rows are about the edge, want a row for each address of Service web:\n%s", len(rows), &out)
	}
	line := regexp.MustCompile(`✓ all \d+ paths are as they must be \(\d+ connections in [\d.]+s, (\d+) of them handed over\)`).FindStringSubmatch(out.String())
	if line == nil || number(line[1]) != sum {
		t.Errorf("the last line is not about %d connections that were handed over:\n%s", sum, &out)
	}
}

// TestEdgeFollowsManifests: connections of many kinds of frontends, protocols and endpoints are handed over, until their Service opts out. If nodes stop handing
// connections over, the round is wrong, because servers see a node in place of the client.
func TestEdgeFollowsManifests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	write := func(asks string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(edgeManifest, "ASKS", asks)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("true")
	var out strings.Builder
	o := edgeOptions(t, path, &out)
	s, err := newSession(t.Context(), o, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, step := range []struct {
		asks string
		over int // Services names and web at two load balancer IPs each, web at its externalIP, and host
	}{{"true", 6}, {"false", 0}, {"true", 6}} {
		write(step.asks)
		if err := s.apply(t.Context(), o.Inputs.Load()); err != nil {
			t.Fatal(err)
		}
		v, paths := s.round(t.Context()), 0
		for i := range v.results {
			if v.results[i].handedOver > 0 {
				paths++
			}
		}
		if err := v.verdict(nil, false); err != nil || paths != step.over {
			t.Errorf("with the annotation %q, connections on %d paths are handed over, want %d: %v", step.asks, paths, step.over, err)
		}
	}
	if err := s.edge.Close(); err != nil {
		t.Fatal(err)
	}
	err = s.round(t.Context()).verdict(nil, false)
	if surprise, ok := errors.AsType[*SurpriseError](err); !ok || !strings.Contains(strings.Join(surprise.Surprises, "\n"), "the client is 192.0.2.100 and its address must be kept") {
		t.Errorf("without the edge: %v", err)
	}
}

const edgeManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {switchyard.net/edge: "ASKS"}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  externalIPs: [203.0.113.77]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: names, annotations: {switchyard.net/edge: "ASKS"}}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{protocol: UDP, port: 53, targetPort: 5353}]}
---
apiVersion: v1
kind: Service
metadata: {name: host, annotations: {switchyard.net/edge: "ASKS"}}
spec: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.100/32], selector: {app: host}, ports: [{port: 80, targetPort: 9090}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: x, ports: [{containerPort: 8080}, {containerPort: 5353, protocol: UDP}]}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: host}
spec:
  selector: {matchLabels: {app: host}}
  template: {metadata: {labels: {app: host}}, spec: {hostNetwork: true, containers: [{name: c, image: x, ports: [{containerPort: 9090}]}]}}
`
