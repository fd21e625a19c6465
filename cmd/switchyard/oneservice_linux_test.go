package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/await"
)

// refusedEndpoints are more than the dataplane programs for one port.
const refusedEndpoints = 20_000

// refusedSlices are EndpointSlices of the service big, as JSON, which manifests may be as well.
func refusedSlices() []string {
	const perSlice = 1000
	var list []string
	for s := range refusedEndpoints / perSlice {
		endpoints := make([]string, perSlice)
		for i := range endpoints {
			endpoints[i] = fmt.Sprintf(`{"addresses":["10.9.%d.%d"],"conditions":{"ready":true}}`, (s*perSlice+i)/250, (s*perSlice+i)%250)
		}
		list = append(list, fmt.Sprintf(`{"metadata":{"namespace":"default","name":"big-%d","resourceVersion":"1","labels":{"kubernetes.io/service-name":"big"}},
			"addressType":"IPv4","ports":[{"name":"tcp","protocol":"TCP","port":8080}],"endpoints":[%s]}`, s, strings.Join(endpoints, ",")))
	}
	return list
}

// big is the service with too many endpoints.
const big = `{"metadata":{"namespace":"default","name":"big","resourceVersion":"1"},
	"spec":{"clusterIP":"10.96.0.11","clusterIPs":["10.96.0.11"],"ipFamilies":["IPv4"],"ports":[{"name":"tcp","protocol":"TCP","port":80}]}}`

// troubleManifests writes manifests of a node with a service that is in order, one that the dataplane refuses and one whose health
// check port somebody else listens on.
func troubleManifests(t *testing.T) (dir string) {
	dir = t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for kind, o := range objects {
		typed := map[string]string{"nodes": `"v1","kind":"Node"`, "services": `"v1","kind":"Service"`,
			"endpointslices": `"discovery.k8s.io/v1","kind":"EndpointSlice"`}[kind]
		write(kind+".json", `{"apiVersion":`+typed+","+o[1:])
	}
	write("big.json", `{"apiVersion":"v1","kind":"Service",`+big[1:])
	for i, s := range refusedSlices() {
		write(fmt.Sprintf("big-%d.json", i), `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",`+s[1:])
	}
	return dir
}

// takeHealthPort listens on the health check port of the service web, as a tenant's pod in the host's network could. It begins with
// an empty kernel.
func takeHealthPort(t *testing.T) {
	if code := run(t.Context(), []string{"cleanup"}, io.Discard, t.Output()); code != cli.ExitOK {
		t.Fatalf("cleanup ended with %d", code)
	}
	l, err := net.Listen("tcp", nodeAddr+":"+healthPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// listenAsEndpoint accepts connections where the service web has its endpoint.
func listenAsEndpoint(t *testing.T) {
	l, err := net.Listen("tcp", endpointAddr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// expectProblems waits until /healthz lists both problems, each with its object, field and remedy, and is 200.
func expectProblems(t *testing.T, healthz string) {
	t.Helper()
	var answer string
	await.Until(t, "both problems are listed", func() bool {
		answer = get(healthz)
		for _, text := range []string{
			"service default/big", `port \"tcp\" has 20000 endpoints`, "spread them over several Services",
			"healthCheckNodePort " + healthPort + " of service default/web", "give the service another healthCheckNodePort",
		} {
			if !strings.Contains(answer, text) {
				return false
			}
		}
		return true
	})
	if !strings.HasPrefix(answer, "200 ") || !strings.Contains(answer, `"healthy":true`) {
		t.Errorf("services of single tenants make the node unhealthy: %.300s", answer)
	}
	if !connects(clusterAddr) {
		t.Error("the service that is in order is not routed")
	}
}

// TestOneServiceIsNoFault: a Service that the dataplane refuses and a health check port that somebody else has are problems that
// /healthz names, and no reason to take the node out of the load balancers of all other Services.
func TestOneServiceIsNoFault(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	t.Run("run", func(t *testing.T) {
		takeHealthPort(t)
		listenAsEndpoint(t)
		start(t, "run", "--source", troubleManifests(t), "--node", "node-a")
		expectProblems(t, "127.0.0.1:10256/healthz")
	})
	t.Run("serve and apply", func(t *testing.T) {
		takeHealthPort(t)
		listenAsEndpoint(t)
		socket := "unix://" + filepath.Join(t.TempDir(), "api.sock")
		start(t, "serve", "--source", troubleManifests(t), "--node", "node-a", "--listen", socket, "--healthz-bind-address", "127.0.0.1:10266")
		start(t, "apply", "nftables", "--api", socket)
		expectProblems(t, "127.0.0.1:10256/healthz")
		await.Until(t, "the server lists what the dataplane refuses, too", func() bool {
			answer := get("127.0.0.1:10266/healthz")
			return strings.HasPrefix(answer, "200 ") && strings.Contains(answer, "default/big")
		})
	})
	t.Run("proxy", func(t *testing.T) {
		takeHealthPort(t)
		listenAsEndpoint(t)
		objects["services"] += "," + big
		objects["endpointslices"] += "," + strings.Join(refusedSlices(), ",")
		config := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(config, []byte(`apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
hostnameOverride: node-a
mode: nftables
clientConnection: {contentType: application/json}
linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
`), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, "proxy", "--config", config, "--master", newAPIServer(t).URL)
		expectProblems(t, "127.0.0.1:10256/healthz")
		metrics := get("127.0.0.1:10249/metrics")
		for _, line := range []string{"\nswitchyard_failed_services 1\n", "\nswitchyard_health_check_port_problems 1\n"} {
			if !strings.Contains(metrics, line) {
				t.Errorf("the metrics do not have %q", strings.TrimSpace(line))
			}
		}
	})
}
