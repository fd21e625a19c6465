package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/await"
)

// thief is a service that wants the node's own address and many ports, and thiefSlice where it would take the connections to. It comes
// after web by its name, and both are equally old.
var thief = `{"metadata":{"namespace":"default","name":"xthief","resourceVersion":"1"},
	"spec":{"clusterIP":"10.96.0.12","clusterIPs":["10.96.0.12"],"ipFamilies":["IPv4"],"externalIPs":["` + nodeAddr + `"],
		"ports":[{"name":"tcp","protocol":"TCP","port":80}` + manyPorts(20) + `]}}`

const thiefSlice = `{"metadata":{"namespace":"default","name":"xthief-1","resourceVersion":"1","labels":{"kubernetes.io/service-name":"xthief"}},
	"addressType":"IPv4","ports":[{"name":"tcp","protocol":"TCP","port":8080}],
	"endpoints":[{"addresses":["` + endpointAddr + `"],"nodeName":"node-a","conditions":{"ready":true}}]}`

func manyPorts(n int) (list string) {
	for i := range n {
		list += fmt.Sprintf(`,{"name":"p%d","protocol":"TCP","port":%d}`, i, 1000+i)
	}
	return list
}

// TestServiceLimits: what a Service asks for and does not get is an event about it, a metric and a problem that /healthz lists; and the
// operator can change what Services may have while the process runs.
func TestServiceLimits(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	objects["services"] += "," + thief
	objects["endpointslices"] += "," + thiefSlice
	b := startProxy(t)
	asked := b.api.asked.Load()
	metric := func(reason store.Reason) string {
		return regexp.MustCompile(`switchyard_limited_services\{reason="` + string(reason) + `"\} \d+`).FindString(get("127.0.0.1:10249/metrics"))
	}
	expect := func(reason store.Reason, problem string) {
		t.Helper()
		await.Until(t, problem+" is listed", func() bool {
			answer := get("127.0.0.1:10256/healthz")
			return strings.HasPrefix(answer, "200 ") && strings.Contains(answer, "service default/xthief: "+problem)
		})
		if got := metric(reason); !strings.HasSuffix(got, " 1") {
			t.Errorf("the metric is %q", got)
		}
		await.Until(t, "there is an event", func() bool {
			events := b.api.events.String()
			return strings.Contains(events, `"reason":"`+string(reason)+`","regarding":{"kind":"Service","namespace":"default","name":"xthief"}`) &&
				strings.Contains(events, problem) && strings.Contains(events, `"type":"Warning"`)
		})
	}
	expect(store.ExternalIPRefused, "spec.externalIPs: "+nodeAddr+" is the address of a node")
	if connects(nodeAddr + ":80") {
		t.Error("a service took the connections to the node")
	}
	b.change("services", "{nodeExternalIPs: true}", changed)
	await.Until(t, "the operator allows it", func() bool { return connects(nodeAddr + ":80") })
	if got := metric(store.ExternalIPRefused); !strings.HasSuffix(got, " 0") {
		t.Errorf("the metric is still %q", got)
	}
	b.change("services", "{nodeExternalIPs: true, allowedExternalIPs: [192.0.2.0/24]}", changed)
	await.Until(t, "it is in no range", func() bool { return !connects(nodeAddr + ":80") })
	// It takes 10 entries for each of its 21 ports, and one for the endpoint; web takes 28, and is routed all the time.
	b.change("services", "{maxEntries: 50}", changed)
	expect(store.ServiceTooLarge, "spec.ports: the service has 211 entries, and 50 may be routed")
	b.change("services", "{maxEntriesPerNamespace: 60}", changed)
	expect(store.NamespaceFull, "metadata.namespace: the namespace may have 60 entries; older services leave room for 32 of the 211")
	b.change("services", "{maxEntriesPerNamespace: 1000000, maxEntriesPerNode: 40}", changed)
	expect(store.NodeFull, "metadata.namespace: the namespace may have 33 entries; older services leave room for 5 of the 211")
	b.change("services", "{}", changed)
	await.Until(t, "all is routed", func() bool { return strings.HasSuffix(metric(store.NodeFull), " 0") && connects("10.96.0.12:80") })
	if n := b.api.asked.Load() - asked; n != 0 {
		t.Errorf("the API server was asked for everything again (%d times)", n)
	}
}

// TestLimitStories checks with run, serve and apply what Services must not have.
func TestLimitStories(t *testing.T) { tellStories(t, "testdata/limits") }
