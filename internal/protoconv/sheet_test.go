package protoconv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// sheetRecord is a record of the n-th service; version makes a difference.
func sheetRecord(n, version int) *state.Service {
	return &state.Service{
		Name:        state.ServiceName{Namespace: fmt.Sprint("ns", n%3), Name: fmt.Sprintf("svc-%03d", n)},
		HealthCheck: state.HealthCheck{Port: uint16(1 + version)},
	}
}

func byName(a, b *state.Service) int { return a.Name.Compare(b.Name) }

// received returns the content of a full state at a client, and the sizes of its parts.
func received(t *testing.T, e *Encoder, records []*state.Service, size int) (got []*localnetv1.ServiceEndpoints, sizes []int) {
	t.Helper()
	for part := range Parts(e, &state.Update{Full: true, Changed: records}, nil, Position{}, size) {
		m := new(localnetv1.WatchResponse)
		if err := proto.Unmarshal(part.Bytes(), m); err != nil {
			t.Fatal(err)
		}
		if !m.Full {
			t.Fatal("a part of a full state does not say so")
		}
		sizes = append(sizes, len(part.Bytes()))
		got = append(got, m.Changed...)
	}
	return got, sizes
}

// TestSheetsChangeNothing sends states with all kinds of differences at once. Each client must get the same bytes as
// from marshalling its records one by one.
func TestSheetsChangeNothing(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var e Encoder
		var clients sync.WaitGroup
		states := make([][]*state.Service, 1+rng.IntN(3)) // for example states of zones
		for i := range states {
			for n := range rng.IntN(60) {
				states[i] = append(states[i], sheetRecord(n, i))
			}
			slices.SortFunc(states[i], byName)
		}
		for step := range 50 {
			i := rng.IntN(len(states))
			mine := slices.Clone(states[i])
			for range rng.IntN(4) {
				mine = mutate(rng, mine, 10+step)
			}
			if rng.IntN(2) == 0 {
				states[i] = mine // a change for all, not for one node
			}
			size := 1 + rng.IntN(200)
			clients.Go(func() {
				got, _ := received(t, &e, mine, size)
				if len(got) != len(mine) {
					t.Errorf("seed %d: %d records came of %d", seed, len(got), len(mine))
					return
				}
				for j, r := range mine {
					if !proto.Equal(got[j], Service(r)) {
						t.Errorf("seed %d: record %d is %v, want %v", seed, j, got[j], Service(r))
					}
				}
			})
		}
		clients.Wait()
	}
}

// mutate adds, removes or replaces a record.
func mutate(rng *rand.Rand, list []*state.Service, version int) []*state.Service {
	r := sheetRecord(rng.IntN(60), version)
	at, found := slices.BinarySearchFunc(list, r, byName)
	switch {
	case !found:
		return slices.Insert(list, at, r)
	case rng.IntN(2) == 0:
		return slices.Delete(list, at, at+1)
	}
	list[at] = r
	return list
}

// TestStatesShareMemory: common records of two nodes are marshalled once, for any differences around them.
func TestStatesShareMemory(t *testing.T) {
	var first []*state.Service
	for n := range 300 {
		first = append(first, sheetRecord(n, 0))
	}
	slices.SortFunc(first, byName)
	second := slices.Clone(first)
	second[100] = new(*first[100])
	second = slices.Delete(second, 200, 202)
	var e Encoder
	a, b := e.stretches(first), e.stretches(second)
	if len(a) != 1 || len(b) != 4 || e.sheets.latest != a[0].sheet {
		t.Fatalf("the states are sent as %+v and %+v, want one stretch, and three beside a single record", a, b)
	}
	shared := 0
	for _, s := range b {
		if s.sheet == a[0].sheet {
			shared += s.to - s.from
		}
	}
	if want := len(second) - 1; shared != want {
		t.Errorf("%d records are shared, want %d", shared, want)
	}
}

// TestSheetFollowsChanges: records that have changed for all nodes are soon no longer marshalled for each node. Zones
// do not evict each other's sheets while these are in use.
func TestSheetFollowsChanges(t *testing.T) {
	var e Encoder
	var zones [3][]*state.Service
	for i := range zones {
		for n := range 100 {
			zones[i] = append(zones[i], sheetRecord(n, i))
		}
		slices.SortFunc(zones[i], byName)
	}
	var inUse [][]stretch
	for node := range 300 {
		list := e.stretches(zones[node%3])
		inUse = append(inUse, list)
		if len(list) != 1 {
			t.Fatalf("the state of node %d is sent as %+v, want one stretch", node, list)
		}
	}
	if n := len(e.sheets.all()); n != len(zones) {
		t.Errorf("there are %d sheets for %d zones", n, len(zones))
	}
	changed := slices.Clone(zones[0])
	for i := range 10 {
		changed[7*i] = new(*changed[7*i])
	}
	alone := 0
	for range 100 {
		for _, s := range e.stretches(changed) {
			if s.sheet == nil {
				alone++
			}
		}
	}
	if alone > 100 {
		t.Errorf("%d records were marshalled for single nodes", alone)
	}
	_ = inUse[0]
}

// TestPartsAreCutWell: parts are as large as they should be, also within a stretch.
func TestPartsAreCutWell(t *testing.T) {
	var e Encoder
	var records []*state.Service
	for n := range 1000 {
		records = append(records, sheetRecord(n, 0))
	}
	slices.SortFunc(records, byName)
	one := len(encode(Service(records[0])).ReadOnlyData()) + 1
	got, sizes := received(t, &e, records, 10*one)
	if len(got) != len(records) {
		t.Errorf("%d records came of %d", len(got), len(records))
	}
	for i, size := range sizes[:len(sizes)-1] {
		if size < 10*one || size >= 12*one {
			t.Errorf("part %d has %d bytes, want about %d", i, size, 10*one)
		}
	}
}

// BenchmarkFullStates marshals the full states of nodes in a cluster of 10,000 services, which differ in ten records each.
func BenchmarkFullStates(b *testing.B) {
	var e Encoder
	var common []*state.Service
	for n := range 10_000 {
		common = append(common, sheetRecord(n, 0))
	}
	slices.SortFunc(common, byName)
	node := 0
	for b.Loop() {
		node++
		b.StopTimer()
		records := slices.Clone(common)
		for i := range 10 {
			records[(node*10+i)%len(records)] = new(*records[(node*10+i)%len(records)])
		}
		b.StartTimer()
		for range Parts(&e, &state.Update{Full: true, Changed: records}, nil, Position{}, 64<<10) {
		}
	}
}

// BenchmarkOneRecord marshals one changed record for one node after the other.
func BenchmarkOneRecord(b *testing.B) {
	var e Encoder
	u := &state.Update{Revision: 7, Node: &state.Node{Name: "n"}, Changed: []*state.Service{sheetRecord(1, 1)}}
	b.ReportAllocs()
	for b.Loop() {
		for part := range Parts(&e, u, nil, Position{1, 7}, 64<<10) {
			_, _ = Codec().Marshal(part)
		}
	}
}
