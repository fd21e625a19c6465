package windows

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// TestWindowsService: the service manager creates, starts, stops and deletes a service of the program.
func TestWindowsService(t *testing.T) {
	manager, err := mgr.Connect()
	if err != nil {
		t.Fatalf("service manager: %v", err)
	}
	defer func() { _ = manager.Disconnect() }()
	path, err := filepath.Abs(*program)
	if err != nil {
		t.Fatal(err)
	}
	dir, healthz := t.TempDir(), freeAddress(t, "127.0.0.1")
	write(t, filepath.Join(dir, "node.yaml"), "{apiVersion: v1, kind: Node, metadata: {name: node-a}}\n")
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: userspace
hostnameOverride: node-a
healthzBindAddress: `+healthz+`
metricsBindAddress: ""
windows: {runAsService: true}
`)
	name := fmt.Sprintf("switchyard-test-%d", os.Getpid())
	s, err := manager.CreateService(name, path, mgr.Config{StartType: mgr.StartManual}, "run", "--source", dir, "--config", config)
	if err != nil {
		t.Fatalf("create the service: %v", err)
	}
	deleted := false
	t.Cleanup(func() {
		if !deleted { // the test has failed
			_, _ = s.Control(svc.Stop)
			_ = s.Delete()
		}
		_ = s.Close()
	})
	if err := s.Start(); err != nil {
		t.Fatalf("start the service: %v", err)
	}
	await(t, "the service runs", func() bool { return stateOf(t, s) == svc.Running })
	await(t, "/healthz answers", func() bool {
		r, err := http.Get("http://" + healthz + "/healthz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	if _, err := s.Control(svc.Stop); err != nil {
		t.Fatalf("stop the service: %v", err)
	}
	await(t, "the service has stopped", func() bool { return stateOf(t, s) == svc.Stopped })
	if status, err := s.Query(); err != nil || status.Win32ExitCode != 0 || status.ServiceSpecificExitCode != 0 {
		t.Errorf("the service ended with %+v, %v", status, err)
	}
	if r, err := http.Get("http://" + healthz + "/healthz"); err == nil {
		r.Body.Close()
		t.Error("/healthz answers after the stop")
	}
	if err := s.Delete(); err != nil {
		t.Fatalf("delete the service: %v", err)
	}
	deleted = true
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if again, err := manager.OpenService(name); !errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		if err == nil {
			again.Close()
		}
		t.Errorf("after it was deleted, the service is opened: %v", err)
	}
}

func stateOf(t *testing.T, s *mgr.Service) svc.State {
	t.Helper()
	status, err := s.Query()
	if err != nil {
		t.Fatalf("query the service: %v", err)
	}
	return status.State
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(timeout); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}
