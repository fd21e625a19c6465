package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

func TestBenchmarksReport(t *testing.T) {
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	o := Options{Services: []int{100}, Endpoints: 3}
	if err := Store(t.Context(), r, o); err != nil {
		t.Fatal(err)
	}
	if err := Brain(t.Context(), r, o); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"store/load", "store/endpoint-change-p50", "store/endpoint-change-p99", "brain/from-scratch"}
	var got []string
	for line := range strings.Lines(lines.String()) {
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			t.Fatalf("%q is not JSON: %v", line, err)
		}
		got = append(got, keys["name"].(string))
		if len(keys) != 5 || keys["services"] != 100.0 || keys["endpoints"] != 3.0 || keys["value"].(float64) <= 0 || keys["unit"] == "" {
			t.Errorf("bad result %s", line)
		}
		if !strings.Contains(table.String(), got[len(got)-1]) {
			t.Errorf("%s is not in the table:\n%s", got[len(got)-1], &table)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got results %q, want %q", got, want)
	}
}

func TestTargets(t *testing.T) {
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	r.Report(Result{"part/none", 1, 1, 3, "us"})
	r.ReportAgainst(Result{"part/met", 1, 1, -1, "us"}, -1)
	if err := r.Missed(); err != nil {
		t.Errorf("before any figure has missed its target: %v", err)
	}
	r.ReportAgainst(Result{"part/missed", 1, 1, 0.5, "us"}, 0)
	r.ReportAgainst(Result{"part/more", 20, 1, 1234, "ms"}, 1000)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want := `{"name":"part/none","services":1,"endpoints":1,"value":3,"unit":"us"}
{"name":"part/met","services":1,"endpoints":1,"value":-1,"unit":"us","atMost":-1}
{"name":"part/missed","services":1,"endpoints":1,"value":0.5,"unit":"us","atMost":0,"missed":true}
{"name":"part/more","services":20,"endpoints":1,"value":1234,"unit":"ms","atMost":1000,"missed":true}
`
	if got := lines.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, part := range []string{"target", "at most -1: ok", "at most 0: missed"} {
		if !strings.Contains(table.String(), part) {
			t.Errorf("the table does not have %q:\n%s", part, &table)
		}
	}
	wantErr := "2 of the figures missed their target: part/missed with 1 services is 0.500 us, at most 0; part/more with 20 services is 1234 ms, at most 1000"
	if err := r.Missed(); err == nil || err.Error() != wantErr {
		t.Errorf("got the error %v, want %s", err, wantErr)
	}
}

func TestBenchmarksStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := NewReporter(&bytes.Buffer{}, &bytes.Buffer{})
	for _, run := range []func(context.Context, *Reporter, Options) error{Brain, Store} {
		if err := run(ctx, r, Options{Services: []int{10}}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the context ended", err)
		}
	}
	if err := Store(t.Context(), r, Options{Services: []int{0}}); err == nil {
		t.Error("a cluster without services has nothing to change, but there was no error")
	}
}

func TestStepAnnouncesWhatIsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table bytes.Buffer
		r := NewReporter(&bytes.Buffer{}, &table)
		done := r.Step("short")
		time.Sleep(time.Second)
		done()
		done = r.Step("long %d", 1)
		time.Sleep(time.Hour)
		synctest.Wait()
		done()
		if got := table.String(); got != "long 1 ...\n" {
			t.Errorf("got %q, want the long step only", got)
		}
	})
}

func TestReadable(t *testing.T) {
	for v, want := range map[float64]string{0.02134: "0.021", 1.234: "1.23", 12.34: "12.3", 123.4: "123", -12.34: "-12.3", 1234567.8: "1234568"} {
		if got := readable(v); got != want {
			t.Errorf("readable(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	tests := []struct {
		durations []time.Duration
		p         float64
		want      time.Duration
	}{
		{nil, 50, 0},
		{[]time.Duration{7}, 50, 7},
		{[]time.Duration{7}, 0, 7},
		{[]time.Duration{3, 1, 2}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 99.5, 100},
		{hundred, 100, 100},
	}
	for _, test := range tests {
		if got := Percentile(test.durations, test.p); got != test.want {
			t.Errorf("Percentile(%d durations, %v) = %v, want %v", len(test.durations), test.p, got, test.want)
		}
	}
}

func TestCluster(t *testing.T) {
	const services, endpoints = 1000, 150
	objects := DualStackCluster(services, endpoints)
	if !reflect.DeepEqual(objects, DualStackCluster(services, endpoints)) {
		t.Error("the cluster is not always the same")
	}
	refs := make(map[model.Ref]bool)
	addrs := make(map[netip.Addr]bool)
	total, local := 0, 0
	for _, obj := range objects {
		if refs[obj.Ref()] {
			t.Errorf("%v is there twice", obj.Ref())
		}
		refs[obj.Ref()] = true
		switch obj := obj.(type) {
		case *model.Service:
			for _, a := range obj.ClusterIPs {
				if addrs[a] || !ranges4.services.Contains(a) && !ranges6.services.Contains(a) {
					t.Errorf("%v is used twice or outside its range", a)
				}
				addrs[a] = true
			}
		case *model.EndpointSlice:
			for _, e := range obj.Endpoints {
				if addrs[e.Addr] || !rangesOf(obj.Family).pods.Contains(e.Addr) {
					t.Errorf("%v is used twice or outside its range", e.Addr)
				}
				addrs[e.Addr] = true
				total++
				if e.NodeName == NodeName {
					local++
				}
			}
		}
	}
	if want := 2 * services * (1 + endpoints); len(addrs) != want {
		t.Errorf("the cluster has %d addresses, want %d", len(addrs), want)
	}
	if local*50 != total {
		t.Errorf("%d of %d endpoints are on this node, want 2%%", local, total)
	}
	if single := Cluster(services, endpoints); len(single) != 2+services*3 {
		t.Errorf("a cluster of one family has %d objects, want a node, a range, services and two slices for each", len(single))
	}
}

func TestRSS(t *testing.T) {
	debug.FreeOSMemory() // memory that other tests left is neither taken again below nor given back during the test
	before, err := RSS()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this platform does not report it")
	}
	const more = 64 << 20
	memory := bytes.Repeat([]byte{1}, more)
	after, err := RSS()
	if err != nil || after < before+more/2 {
		t.Errorf("resident memory went from %d to %d (%v) with %d bytes more", before, after, err, len(memory))
	}
}
