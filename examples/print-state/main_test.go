package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/test/apitest"
)

// TestMain is the program itself if the test has started it so.
func TestMain(m *testing.M) {
	if os.Getenv("PRINT_STATE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestPrintsState(t *testing.T) {
	target := apitest.Serve(t, apitest.Write(t, filepath.Join(t.TempDir(), "web.yaml"), manifest), nil)
	cmd := exec.Command(os.Args[0], "--once", "--target", target)
	cmd.Env = append(os.Environ(), "PRINT_STATE=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "# ") {
		t.Fatalf("want the time and two services, got:\n%s", out)
	}
	for i, want := range []string{`name:"bare"`, `name:"web"`} {
		if line := lines[i+1]; !strings.Contains(line, want) || !strings.Contains(line, `namespace:"shop"`) {
			t.Errorf("line %d is not of %s: %s", i+1, want, line)
		}
	}
	for want, why := range map[string]string{
		`address:"\n`:     "the frontend or endpoint 10.x",
		"VERDICT_FORWARD": "the route",
		"port:8080":       "the endpoint's port",
		"local:true":      "that the endpoint is here",
	} {
		if !strings.Contains(lines[2], want) {
			t.Errorf("%s (%s) is not in: %s", want, why, lines[2])
		}
	}
	if !strings.Contains(lines[1], "VERDICT_REJECT") {
		t.Errorf("a service without endpoints is not refused: %s", lines[1])
	}
	if !strings.Contains(stderr.String(), "--rev 1") {
		t.Errorf("it does not say how to resume: %s", &stderr)
	}
}

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- addresses: [10.244.1.5]
  nodeName: node-a
---
apiVersion: v1
kind: Service
metadata: {name: bare, namespace: shop}
spec:
  clusterIP: 10.96.0.11
  ports: [{port: 80}]
`
