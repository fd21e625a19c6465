package clusterserver

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
)

// TestPartsAreMarshalledOnce for all followers that are busy with them, and again, as they were, for one that comes later.
func TestPartsAreMarshalledOnce(t *testing.T) {
	feed := objectlog.New(objectlog.Options{})
	sink := feed.Source("test")
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprint(strings.Repeat("x", 200), i))
	}
	sink.Update(namespaces(names...), nil)
	sink.Complete()
	u, err := feed.Next(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var s partitions
	p, done := s.begin(u, instance)
	again, err := feed.Next(t.Context(), 0)
	if other, otherDone := s.begin(again, instance); err != nil || other != p {
		t.Fatal("another follower of the same update has it cut anew")
	} else {
		otherDone()
	}
	var sent []*part
	for i := 0; len(sent) == 0 || !sent[i-1].last; i++ {
		sent = append(sent, p.part(i))
	}
	if len(sent) < 5 {
		t.Fatalf("there are %d parts, which tests little", len(sent))
	}
	objects := 0
	var copies [][]byte
	for _, made := range sent {
		m := new(clusterv1.FollowResponse)
		if err := proto.Unmarshal(made.bytes, m); err != nil {
			t.Fatal(err)
		}
		objects += len(m.GetSet())
		copies = append(copies, bytes.Clone(made.bytes))
	}
	if objects != len(u.Set) {
		t.Errorf("%d objects are in the parts, want %d", objects, len(u.Set))
	}
	sent = nil
	check := func(kept bool) {
		t.Helper()
		runtime.GC()
		for i := range copies {
			if (p.parts[i].Value() != nil) != kept {
				t.Errorf("part %d is kept: %v, want %v", i, !kept, kept)
			}
		}
	}
	check(true)
	done()
	check(false)
	for i := range copies {
		if again := p.part(i); !bytes.Equal(again.bytes, copies[i]) || again.last != (i == len(copies)-1) {
			t.Errorf("part %d is another one the second time", i)
		}
	}
}

// TestOneFullSetIsKept: of full sets that are sent at once, the newest is kept marshalled, whichever begins and ends first.
func TestOneFullSetIsKept(t *testing.T) {
	old, latest := &objectlog.Update{Revision: 1, Full: true, Set: namespaces("a")}, &objectlog.Update{Revision: 2, Full: true, Set: namespaces("b")}
	var s partitions
	keeps := func(want ...bool) {
		t.Helper()
		for i, u := range []*objectlog.Update{old, latest} {
			p := u.Memo(nil).(*partition)
			p.part(0)
			if got := len(p.kept) > 0; got != want[i] || p.keep != want[i] {
				t.Errorf("the parts of revision %d are kept: %v, want %v", u.Revision, got, want[i])
			}
		}
	}
	_, done1 := s.begin(old, 1)
	_, done2 := s.begin(latest, 1)
	_, done3 := s.begin(old, 1)
	_, done4 := s.begin(latest, 1)
	keeps(false, true)
	done1()
	done2()
	done3()
	keeps(false, true)
	done4()
	keeps(false, false)
	if s.latest != nil || s.users != 0 {
		t.Errorf("%+v is left", s.latest)
	}
}

// sink is a stream that nobody reads.
type sink struct {
	grpc.BidiStreamingServer[clusterv1.FollowRequest, clusterv1.FollowResponse]
	bytes int
}

func (s *sink) SendMsg(m any) error {
	data, err := protoconv.Codec().Marshal(m)
	s.bytes += data.Len()
	return err
}

func (s *sink) Send(m *clusterv1.FollowResponse) error { return s.SendMsg(m) }

// BenchmarkTenFollowers hands the full set of 10,000 services to ten followers that come at once.
func BenchmarkTenFollowers(b *testing.B) {
	feed := objectlog.New(objectlog.Options{})
	k := feed.Source("bench")
	for i := range 10_000 {
		k.Update(serviceAndSlice(i, "team", 5), nil)
	}
	k.Complete()
	s := &server{feed: feed, instance: instance}
	sent := 0
	for b.Loop() {
		var followers sync.WaitGroup
		for i := range 10 {
			followers.Go(func() {
				u, err := feed.Next(b.Context(), 0)
				var out sink
				if err == nil {
					err = s.send(&out, u)
				}
				if err != nil {
					b.Error(err)
				}
				if i == 0 {
					sent = out.bytes
				}
			})
		}
		followers.Wait()
	}
	b.ReportMetric(float64(sent), "B/set")
}
