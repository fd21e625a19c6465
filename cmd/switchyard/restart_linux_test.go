package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/await"
)

// following is a site whose dataplane shows what a server serves, under traffic, with nothing left to write.
func following(t *testing.T) (s *site, server, dataplane *process, written uint32) {
	s = newSite(t)
	s.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
	for i := range 5 {
		s.write(fmt.Sprintf("other-%d.yaml", i), rendered(fmt.Sprintf("other-%d", i), fmt.Sprintf("10.96.1.%d", 1+i), "", "10.1.1.1"))
	}
	server, dataplane = s.serve(), s.apply()
	await.Until(t, "the service is routed", dataplane.says(routing+"6 services"))
	startTraffic(t)
	return s, server, dataplane, quiet(t)
}

// takeOver is the number of commits with which a dataplane claims the tables it finds: one for its lock, and one for
// the owner flag where the kernel has it.
func takeOver(t *testing.T) uint32 {
	t.Helper()
	c, err := nft.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	persistent, err := c.Has(nft.PersistentTables)
	if err != nil {
		t.Fatal(err)
	}
	if persistent {
		return 2
	}
	return 1
}

// nothingWritten expects that the kernel's rules have not been touched since.
func nothingWritten(t *testing.T, since uint32, when string) {
	t.Helper()
	if now := quiet(t); now != since {
		t.Errorf("%s: %d commits, want none", when, now-since)
	}
}

// TestRestartsWriteNothing: who comes back, server or dataplane, after a kill or an orderly end, goes on with what the kernel has.
func TestRestartsWriteNothing(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s, server, dataplane, written := following(t)
	end := map[string]func(p *process){
		"a kill": func(p *process) { p.Kill() },
		"an end": func(p *process) {
			_ = p.Cmd.Process.Signal(syscall.SIGTERM)
			<-p.Done()
		},
	}
	for how, stop := range end {
		stop(dataplane)
		nothingWritten(t, written, how+" of the dataplane")
		dataplane = s.apply()
		await.Until(t, "the dataplane takes over", dataplane.says(routing+"6 services\n"))
		written += takeOver(t)
		nothingWritten(t, written, "a start of the dataplane after "+how)

		stop(server)
		await.Until(t, "the dataplane says that there is no server", dataplane.says("cannot follow the server, trying again"))
		server = s.serve()
		await.Until(t, "the dataplane follows the new server", dataplane.says("following the server again"))
		nothingWritten(t, written, "another server after "+how)

		stop(server)
		stop(dataplane)
		dataplane, server = s.apply(), s.serve()
		await.Until(t, "the dataplane takes over", dataplane.says(routing+"6 services\n"))
		written += takeOver(t)
		nothingWritten(t, written, "another server and another dataplane after "+how)
	}
	if text := dataplane.log.String(); strings.Count(text, routing) != 1 {
		t.Errorf("what is routed is not said once:\n%s", text)
	}
	s.write("last.yaml", rendered("last", "10.96.0.99", "", endpointAddr))
	await.Until(t, "a change is shown", func() bool { return once("tcp", "10.96.0.99:80") == nil })
}

// TestServersThatKnowNothingYet: a server that does not know yet what there is takes nothing away, neither from a dataplane that
// shows something nor from one that starts.
func TestServersThatKnowNothingYet(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s, server, dataplane, written := following(t)
	for _, broken := range []string{"all", "web.yaml"} {
		server.Kill()
		files, err := filepath.Glob(s.dir + "/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		good := map[string]string{}
		for _, path := range files {
			if name := filepath.Base(path); broken == "all" || name == broken {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				good[name] = string(text)
				s.write(name, "{ apiVersion: v1, kind:")
			}
		}
		server = s.serve()
		await.Until(t, "the server says what it waits for", server.says("waiting until this file is fixed"))
		nothingWritten(t, written, "a server with broken manifests: "+broken)
		dataplane.Kill()
		dataplane = s.apply()
		await.Until(t, "the dataplane says what it waits for", func() bool {
			return strings.Contains(get("127.0.0.1:10256/healthz"), "no state from the API since")
		})
		written += takeOver(t)
		nothingWritten(t, written, "a dataplane that starts on a server with broken manifests: "+broken)
		for name, text := range good {
			s.write(name, text)
		}
		await.Until(t, "the fixed state is shown", dataplane.says(routing+"6 services"))
		nothingWritten(t, written, "manifests fixed: "+broken)
	}

	// An API server that takes its time for a part of the objects.
	server.Kill()
	api := newAPIServer(t)
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/endpointslices") {
			asked <- struct{}{}
			select {
			case <-answer:
			case <-r.Context().Done():
				return
			}
		}
		api.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { slow.CloseClientConnections(); slow.Close() })
	config := filepath.Join(filepath.Dir(s.dir), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", slow.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "serve", "--kubeconfig", config, "--node", "node-a", "--listen", "unix://"+s.socket)
	<-asked
	time.Sleep(2 * time.Second)
	nothingWritten(t, written, "a server whose API server takes its time")
	close(answer)
	await.Until(t, "the state of the API server is shown, and its health check port", func() bool {
		return strings.Contains(get(nodeAddr+":"+healthPort), `"localEndpoints":1`)
	})
}
