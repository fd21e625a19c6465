package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/dataplanes"
)

// holderOrder has a process program Services.
type holderOrder struct {
	Dataplane string
	Services  int
	Endpoints int
	// Node is the node's address, and Cgroup what hooks are for.
	Node   netip.Addr
	Cgroup string
}

// holderAnswer is what came of an order.
type holderAnswer struct {
	// Error is why it could not be done, empty otherwise.
	Error string
	Programming
}

// HoldDataplane programs what the order on stdin says, in the process's network namespace, answers on stdout, and goes on serving until stdin ends. It is a
// process of its own because memory is measured, and because some dataplanes serve by themselves.
func HoldDataplane(ctx context.Context, stdin io.Reader, stdout io.Writer) (err error) {
	in := json.NewDecoder(stdin)
	var o holderOrder
	if err := in.Decode(&o); err != nil {
		return nil // the process that gives orders is gone
	}
	// The relay of mode userspace takes two for each connection.
	if err := allowFiles(1 << 12); err != nil {
		return err
	}
	h := &holder{order: o}
	defer func() { err = errors.Join(err, h.close()) }()
	a := holderAnswer{}
	if a.Programming, err = h.measure(ctx); err != nil {
		a.Error = err.Error()
	}
	if err := json.NewEncoder(stdout).Encode(a); err != nil {
		return err
	}
	_ = in.Decode(&o) // there is no second order: it waits for the end
	return nil
}

// holder has a dataplane with Services.
type holder struct {
	order holderOrder
	plane dataplanes.Dataplane // nil if it is not open
}

func (h *holder) close() error {
	if h.plane == nil {
		return nil
	}
	err := h.plane.Close()
	h.plane = nil
	return err
}

func (h *holder) open(ctx context.Context) (err error) {
	o := dataplanes.Options{LocalDetector: labDetector}
	if h.order.Dataplane == nameOfEBPF {
		h.plane, err = openHooks(ctx, h.order.Cgroup)
	} else {
		h.plane, err = dataplanes.Open(ctx, h.order.Dataplane, o)
	}
	return err
}

// changesFor is how long single changes are measured, and mostChanges how many at most.
const changesFor, mostChanges = 2 * time.Second, 500

func (h *holder) measure(ctx context.Context) (p Programming, err error) {
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName, LocalDetector: labDetector}})
	defer s.Close()
	sink := s.Source("bench")
	sink.Update(Cluster(h.order.Services, h.order.Endpoints), nil)
	sink.Update(measuredObjects(h.order.Node, measuredNodePort), nil)
	sink.Complete()
	first, err := s.Next(ctx, 0)
	if err != nil {
		return p, err
	}
	runtime.GC() // what came before is not measured
	if p.ColdLoad, err = h.load(ctx, first); err != nil {
		return p, err
	}
	resident.Trim() // as a node does once it is up
	rss, err := RSS()
	if err != nil {
		return p, err
	}
	p.Memory = float64(rss) / (1 << 20)
	if err := h.changes(ctx, first, &p); err != nil {
		return p, err
	}
	if err := h.close(); err != nil {
		return p, err
	}
	runtime.GC()
	p.WarmRestart, err = h.load(ctx, first)
	return p, err
}

// load opens the dataplane and gives it a state, and returns how many milliseconds that takes.
func (h *holder) load(ctx context.Context, u *state.Update) (float64, error) {
	began := time.Now()
	err := h.open(ctx)
	if err == nil {
		err = h.apply(ctx, u)
	}
	return Milliseconds(time.Since(began)), err
}

func (h *holder) apply(ctx context.Context, u *state.Update) error {
	result, err := h.plane.Apply(ctx, u)
	for name, failed := range result.Failed {
		err = errors.Join(err, fmt.Errorf("service %v: %w", name, failed))
	}
	return err
}

// changes replaces one endpoint after the other, and then goes back to the first state.
func (h *holder) changes(ctx context.Context, first *state.Update, p *Programming) error {
	var took []time.Duration
	began := time.Now()
	for _, s := range withNewEndpoint(first.Changed) {
		if len(took) == mostChanges || time.Since(began) > changesFor {
			break
		}
		start := time.Now()
		if err := h.apply(ctx, &state.Update{Node: first.Node, Changed: []*state.Service{s}}); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	p.Changes = len(took)
	p.ChangeP50, p.ChangeP99 = Milliseconds(Percentile(took, 50)), Milliseconds(Percentile(took, 99))
	return h.apply(ctx, first)
}

// hooked is socket hooks with nftables below.
type hooked struct {
	*ebpf.Backend
	base *nftables.Backend
}

// openHooks opens hooks for the processes of a cgroup. It fails if they are off.
func openHooks(ctx context.Context, cgroup string) (dataplanes.Dataplane, error) {
	base, err := nftables.New(ctx, nftables.Options{LocalDetector: labDetector})
	if err != nil {
		return nil, err
	}
	b, err := ebpf.New(base, ebpf.Options{LocalDetector: labDetector, CgroupPath: cgroup})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	h := hooked{b, base}
	if s := b.Status(); s.State != ebpf.On {
		return nil, errors.Join(fmt.Errorf("hooks are %v: %w", s.State, s.Reason), h.Close())
	}
	return h, nil
}

// Close closes both.
func (h hooked) Close() error { return errors.Join(h.Backend.Close(), h.base.Close()) }
