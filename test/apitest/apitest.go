// Package apitest serves the state of manifests over the node-local API, for the tests of programs that follow it.
package apitest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/source/file"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Node is the node whose state is served.
const Node = "node-a"

// Serve serves what the manifests in a directory mean for [Node], and follows their changes, until the test ends. It returns the
// target for clients, a unix socket. onStatus gets what clients report; it may be nil.
func Serve(t testing.TB, manifests string, onStatus func(server.Client, server.Status)) (target string) {
	t.Helper()
	src, err := file.New(file.Options{Path: manifests})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: Node, LocalDetector: state.LocalDetector{NodeCIDR: true}}})
	t.Cleanup(s.Close)
	names := store.NewNames(store.NamesOptions{})
	t.Cleanup(names.Close)
	srv, err := server.New(server.Options{
		Node: Node, Feed: func(string) (state.Feed, error) { return s, nil }, Names: names, OnStatus: onStatus,
	})
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir(): with the test's name, the path may be too long for a socket.
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "api.sock")
	l, err := server.ListenUnix(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	sink := objectlog.Tee(s.Source("manifests"), names.Source())
	go func() { ended <- src.Run(ctx, sink) }()
	go func() { ended <- srv.Serve(ctx, l, nil) }()
	t.Cleanup(func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return "unix://" + path
}

// Write writes a manifest, whole at once, and returns its directory.
func Write(t testing.TB, path, text string) (dir string) {
	t.Helper()
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(path)
}
