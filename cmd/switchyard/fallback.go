package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/lastknown"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// localFallback follows the API server when no relay answers.
type localFallback struct {
	// last returns the node as relays had it last.
	last func() *state.Node
	log  *slog.Logger
	// memory is how many bytes the process may use; see [node.Options].
	memory int64

	mu     sync.Mutex // guards all below
	config *config.Config
	store  *store.Store // nil while relays are followed
	proxy  string       // the serviceProxyName of the followed Services
}

// start follows the API server until ctx ends. It returns the states, and what waits for the end.
func (f *localFallback) start(ctx context.Context) (state.Feed, func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.config
	f.proxy = c.ServiceProxyName
	s := store.New(store.Options{Brain: f.brain(), Budgets: node.Budgets(node.Bounded(c, f.memory)), Logger: f.log})
	f.store = s
	sink := lastknown.New(lastknown.Options{Sink: s.Source("kube"), Node: c.HostnameOverride, Logger: f.log})
	done := make(chan error, 1)
	go func() {
		src, err := kubeSource(c, "", c.HostnameOverride, kube.Await{}, f.log) // the dataplane has what the relay knew
		if err == nil {
			err = src.Run(ctx, sink)
		}
		f.mu.Lock()
		f.store = nil
		f.mu.Unlock()
		s.Close()
		done <- err
	}()
	return s, func() error { return <-done }
}

// reconfigure applies another configuration to the states and to the dataplane at once. A change of the API server's
// settings, or of the selected services, takes effect with the next start.
func (f *localFallback) reconfigure(c *config.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = c
	if f.store != nil {
		f.store.Reconfigure(f.brain(), node.Budgets(node.Bounded(c, f.memory)))
	}
}

// brain returns what the states go by. The caller holds mu.
func (f *localFallback) brain() brain.Config {
	b := node.FallbackConfig(node.Bounded(f.config, f.memory), f.config.HostnameOverride, f.last())
	b.ServiceProxyName = f.proxy
	return b
}
