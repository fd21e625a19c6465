package python_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/test/apitest"
	"github.com/switchyard-net/switchyard/test/await"
)

// python returns a command of a Python that has gRPC. Debian's is not always the first on PATH.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import grpc, google.protobuf").Run() == nil {
			cmd := exec.Command(name, append([]string{"-B"}, args...)...)
			cmd.Stderr = os.Stderr
			return cmd
		}
	}
	t.Skip("no python3 here has gRPC: apt-get install python3-grpcio python3-protobuf")
	return nil
}

func TestWatch(t *testing.T) {
	manifests := filepath.Join(t.TempDir(), "shop.yaml")
	applied := make(chan uint64, 100)
	target := apitest.Serve(t, apitest.Write(t, manifests, manifest), func(from server.Client, s server.Status) {
		if from.Name == "watch.py" {
			applied <- uint64(s.Applied)
		}
	})
	cmd := python(t, "watch.py", "--target", target)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer func() {
		stop.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if !lines.Scan() {
				t.Fatalf("the program has ended; want %q", w)
			}
			if got := lines.Text(); got != w {
				t.Fatalf("got  %s\nwant %s", got, w)
			}
		}
	}
	expect("# revision 1: node node-a, 2 services",
		"shop/bare: 10.96.0.11:80 tcp -> reject",
		"shop/web: 10.96.0.10:80 tcp -> 10.244.1.5:8080 10.244.2.6:8080",
		"shop/web: *:30080 tcp -> inside 10.244.1.5:8080 10.244.2.6:8080, outside 10.244.1.5:8080")
	// Only what has changed comes.
	apitest.Write(t, manifests, strings.ReplaceAll(manifest, "10.244.1.5", "10.244.1.7"))
	expect("# revision 2: node node-a, 2 services",
		"shop/web: 10.96.0.10:80 tcp -> 10.244.1.7:8080 10.244.2.6:8080",
		"shop/web: *:30080 tcp -> inside 10.244.1.7:8080 10.244.2.6:8080, outside 10.244.1.7:8080")
	apitest.Write(t, manifests, strings.ReplaceAll(manifest, "name: bare", "name: other"))
	expect("# revision 3: node node-a, 2 services", "shop/bare: gone", "shop/other: 10.96.0.11:80 tcp -> reject")
	for want := uint64(1); want <= 2; want++ {
		if got := await.Receive(t, "it reports what it shows", applied); got != want {
			t.Errorf("it reported that it shows revision %d, want %d", got, want)
		}
	}
}

// TestGeneratedCodeIsCurrent compares what the generated code says of the protocol with what Go's says.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	out, err := python(t, "-c", "import sys, localnet_pb2; sys.stdout.buffer.write(localnet_pb2.DESCRIPTOR.serialized_pb)").Output()
	if err != nil {
		t.Fatal(err)
	}
	var theirs descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	own := protodesc.ToFileDescriptorProto(localnetv1.File_switchyard_localnet_v1_localnet_proto)
	for _, d := range []*descriptorpb.FileDescriptorProto{own, &theirs} { // these depend on who has generated the code
		d.Name = nil
		for _, m := range d.MessageType {
			for _, f := range m.Field {
				f.JsonName = nil
			}
		}
	}
	if !proto.Equal(&theirs, own) {
		t.Error("localnet_pb2.py is not that of localnet.proto; examples/README.md has the command that generates it")
	}
}

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-a}
- {addresses: [10.244.2.6], nodeName: node-b}
---
apiVersion: v1
kind: Service
metadata: {name: bare, namespace: shop}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
`
