package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// brainTime is how long the brain is measured at least.
const brainTime = time.Second

// Brain measures how many services a second the brain computes from scratch, in one goroutine.
func Brain(ctx context.Context, r *Reporter, o Options) error {
	o = o.withDefaults(10_000, 45_000)
	for _, services := range o.Services {
		done := r.Step("brain: computing %d services with %d endpoints", services, o.Endpoints)
		rate, err := brainRate(ctx, Cluster(services, o.Endpoints))
		done()
		if err != nil {
			return err
		}
		r.Report(Result{"brain/from-scratch", services, o.Endpoints, rate, "services/s"})
	}
	return nil
}

// brainRate computes all services of a cluster again and again and returns how many that were in a second.
func brainRate(ctx context.Context, objects []model.Object) (float64, error) {
	var node *model.Node
	var services []*model.Service
	slices := make(map[state.ServiceName][]*model.EndpointSlice)
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *model.Node:
			node = obj
		case *model.Service:
			services = append(services, obj)
		case *model.EndpointSlice:
			slices[obj.ServiceName()] = append(slices[obj.ServiceName()], obj)
		}
	}
	cfg := &brain.Config{NodeName: NodeName}
	records := make([]*state.Service, len(services)) // kept, as the store would
	start := time.Now()
	computed := 0
	for time.Since(start) < brainTime {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		for i, svc := range services {
			records[i] = brain.Compute(cfg, node, svc, slices[svc.Name])
			if records[i] == nil {
				return 0, fmt.Errorf("the brain has no record of service %v", svc.Name)
			}
		}
		computed += len(services)
	}
	return float64(computed) / time.Since(start).Seconds(), nil
}
