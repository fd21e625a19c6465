//go:build linux

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/topology"
)

// flipped is how many services the namespace has whose label comes and goes.
const flipped = 500

// A namespace's label takes its services away and brings them back, and nothing is left over.
func TestNamespaceFlips(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir(), ServiceCIDRs: "10.96.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	n, err := startOurs(t.Context(), plane, settings{externalIPs: true, clusterCIDRs: podCIDRs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNode(t, n) })
	n.own(n.Client())
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.AddPod(topology.PodOptions{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), "a"); err != nil {
		t.Fatal(err)
	}
	objects := []model.Object{&model.Namespace{Name: "other"}, &model.Namespace{Name: "mesh"}}
	objects = append(objects, pair("other", 0, pod)...)
	for i := range flipped {
		objects = append(objects, pair("mesh", i+1, pod)...)
	}
	for _, o := range objects {
		if _, err := client.Set(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	last := pairIP(flipped).String() + ":80"
	reaches(t, n, last, "a")
	with := settled(t, n)
	var without int
	for range 3 {
		flip(t, client, true)
		reaches(t, n, last, fmt.Sprintf("map[%v:20]", topology.TimedOut))
		reaches(t, n, pairIP(0).String()+":80", "a")
		got := settled(t, n)
		if without == 0 {
			without = got
		}
		if got != without || got > with-flipped {
			t.Errorf("the rules have %d lines with the namespace and %d without, first it was %d", with, got, without)
		}
		flip(t, client, false)
		for i := range flipped + 1 {
			reaches(t, n, pairIP(i).String()+":80", "a")
		}
		if got := settled(t, n); got != with {
			t.Errorf("the rules have %d lines once the namespace is back, before it was %d", got, with)
		}
	}
	if err := n.trouble(); err != nil {
		t.Error(err)
	}
}

func flip(t *testing.T, client *apicluster.Client, disabled bool) {
	t.Helper()
	if _, err := client.Set(t.Context(), &model.Namespace{Name: "mesh", ProxyDisabled: disabled}); err != nil {
		t.Fatal(err)
	}
}

func pairIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(1 + i>>8), byte(i)}) }

// pair is a service and its slice.
func pair(namespace string, i int, pod *topology.Host) []model.Object {
	name := fmt.Sprintf("service-%d", i)
	return []model.Object{
		&model.Service{Name: state.ServiceName{Namespace: namespace, Name: name}, ClusterIPs: []netip.Addr{pairIP(i)},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}},
		&model.EndpointSlice{Namespace: namespace, Name: name, Service: name, Family: state.IPv4,
			Ports:     []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: pod.Addrs[0], Ready: true, Serving: true, NodeName: "node"}}},
	}
}

// settled returns the number of lines of all rules, once it has stopped changing.
func settled(t *testing.T, n *node) int {
	t.Helper()
	last := -1
	for range 100 {
		var out []byte
		err := n.Node().Do(func() (err error) { out, err = exec.Command("nft", "list", "ruleset").CombinedOutput(); return err })
		if err != nil {
			t.Fatalf("nft list ruleset: %v\n%s", err, out)
		}
		lines := strings.Count(string(out), "\n")
		if lines == last {
			return lines
		}
		last = lines
		time.Sleep(200 * time.Millisecond)
	}
	t.Fatal("the rules do not come to rest")
	return 0
}
