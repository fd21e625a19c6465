//go:build linux

package bench

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

func TestTargets(t *testing.T) {
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	report := func(name string, services int, value float64, unit string) {
		r.Report(Result{name, services, 5, value, unit})
	}
	report("part/none", 1, 3, "us")
	report("ebpf/over-nftables/pod-connect", 1, -1, "us")
	if err := r.Missed(); err != nil {
		t.Errorf("before any figure has missed its target: %v", err)
	}
	report("nftables/warm-restart-written", 1, 0.5, "elements")
	report("ebpf/cold-load/own", 100_000, 1234, "ms")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want := `{"name":"part/none","services":1,"endpoints":5,"value":3,"unit":"us"}
{"name":"ebpf/over-nftables/pod-connect","services":1,"endpoints":5,"value":-1,"unit":"us","atMost":-1}
{"name":"nftables/warm-restart-written","services":1,"endpoints":5,"value":0.5,"unit":"elements","atMost":0,"missed":true}
{"name":"ebpf/cold-load/own","services":100000,"endpoints":5,"value":1234,"unit":"ms","atMost":200,"missed":true}
`
	if got := lines.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, part := range []string{"target", "at most -1: ok", "at most 0: missed"} {
		if !strings.Contains(table.String(), part) {
			t.Errorf("the table does not have %q:\n%s", part, &table)
		}
	}
	wantErr := "2 of the figures missed their target: nftables/warm-restart-written with 1 services is 0.500 elements, at most 0; " +
		"ebpf/cold-load/own with 100000 services is 1234 ms, at most 200"
	if err := r.Missed(); err == nil || err.Error() != wantErr {
		t.Errorf("got the error %v, want %s", err, wantErr)
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
	objects := Cluster(services, endpoints)
	if !reflect.DeepEqual(objects, Cluster(services, endpoints)) {
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
				if addrs[a] || !ranges4.services.Contains(a) {
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
	if want := services * (1 + endpoints); len(addrs) != want {
		t.Errorf("the cluster has %d addresses, want %d", len(addrs), want)
	}
	if local*50 != total {
		t.Errorf("%d of %d endpoints are on this node, want 2%%", local, total)
	}
	if len(objects) != 2+services*3 {
		t.Errorf("the cluster has %d objects, want a node, a range, services and two slices for each", len(objects))
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
