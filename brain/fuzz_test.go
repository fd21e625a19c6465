package brain_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// text writes every field of a record, however deep, empty and nil slices alike. It judges Equal without its help, which
// go-cmp could not: it calls Equal methods.
func text(rec *state.Service) string {
	if rec == nil {
		return "nil"
	}
	plain, edges := rec.WithPorts(slices.Clone(rec.Ports)), ""
	for i := range plain.Ports { // of a pointer, fmt writes the address
		if e := plain.Ports[i].Edge; e != nil {
			edges += fmt.Sprintf("; edge of port %d: %+v", i, *e)
			plain.Ports[i].Edge = nil
		}
	}
	return fmt.Sprintf("%+v%s", *plain, edges)
}

// equal is Equal for records that may be nil.
func equal(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// randomBytes are more than any input takes.
func randomBytes(r *rand.Rand) []byte {
	data := make([]byte, 512)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// FuzzCompute: any input causes no panic, the record keeps its promises, and the arguments are not modified. The record
// does not depend on the order of unordered input.
func FuzzCompute(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	f.Add([]byte{})
	for range 200 {
		f.Add(randomBytes(r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, pristine := (&generator{data}).input(), (&generator{data}).input()
		rec := in.compute()
		if err := check(rec); err != nil {
			t.Fatalf("%v\n%+v", err, rec)
		}
		checkSize(t, in, rec)
		if !reflect.DeepEqual(in, pristine) {
			t.Fatal("Compute modified its arguments")
		}
		in.shuffle(rand.New(rand.NewPCG(uint64(len(data)), 1)))
		if again := in.compute(); !equal(rec, again) {
			t.Fatalf("the record depends on the order of its input:\n%s\n%s", text(rec), text(again))
		}
	})
}

// checkSize: a record holds what SizeOf says and no more than it may, and all of the service if that fits.
func checkSize(t *testing.T, in *input, rec *state.Service) {
	size := brain.SizeOf(in.cfg, in.svc, in.slices)
	limit := in.cfg.MaxEntries
	if limit == 0 {
		limit = brain.MaxEntries
	}
	if n := entriesOf(rec); n > size.Entries || size.Entries > limit || size.Entries > size.Wanted || (size.Entries == 0) != (n == 0) {
		t.Fatalf("the record has %d entries of %d, counted as %+v", n, limit, size)
	}
	if size.Fits() != (size.Entries == size.Wanted) {
		t.Fatalf("%+v, which fits: %v", size, size.Fits())
	}
	whole := *in
	unlimited := *in.cfg
	unlimited.MaxEntries, whole.cfg = 0, &unlimited
	if rest := whole.compute(); size.Fits() && !equal(rec, rest) {
		t.Fatalf("%+v, and yet the record\n%s\nis not the whole one\n%s", size, text(rec), text(rest))
	}
}

// TestEqualIsExact: a change of the input makes the records unequal exactly if it changes the answer. (Lesson from kpng: its
// hashes left fields out, so that changes were lost.)
func TestEqualIsExact(t *testing.T) {
	const pairs = 20_000
	r := rand.New(rand.NewPCG(3, 4))
	changed := 0
	for range pairs {
		before := randomBytes(r)
		g := &generator{before}
		a := g.input().compute()
		after := slices.Clone(before)
		after[r.IntN(len(before)-len(g.data))] ^= 1 << r.IntN(8)
		b := (&generator{after}).input().compute()
		same := text(a) == text(b)
		if equal(a, b) != same || equal(b, a) != same {
			t.Fatalf("Equal says %v, the text says %v\n%x\n%x\n%+v\n%+v", equal(a, b), same, before, after, a, b)
		}
		if !same {
			changed++
		}
	}
	t.Logf("%d of %d changes of the input changed the answer", changed, pairs)
	if changed < pairs/20 || changed > pairs*19/20 {
		t.Errorf("%d of %d changes changed the answer: the generator has become one-sided", changed, pairs)
	}
}
