package protoconv

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc/mem"

	"github.com/switchyard-net/switchyard/state"
)

// A full state has thousands of records, and the states of different nodes differ in a few of them. A sheet has the
// records of one full state, marshalled in order. Other states are sent as stretches of it, with the differing records
// in between.

// sheet holds records in order of their names, each marshalled as a field of the WatchResponse. It is immutable.
type sheet struct {
	records []*state.Service
	bytes   []byte
	ends    []int // of each record in bytes
	// missed counts the records that had to be marshalled in addition to the sheet, for states that share few records
	// with it.
	missed atomic.Int64
}

// stretch is a range of records of a full state. It is a range of a sheet, or a single record that is marshalled for
// this state only.
type stretch struct {
	sheet    *sheet
	from, to int
	alone    mem.Buffer // after its length
}

// start is where the record i begins.
func (s *sheet) start(i int) int {
	if i == 0 {
		return 0
	}
	return s.ends[i-1]
}

// cut returns the end of the stretch from record i that has about size bytes. It has at least one record, and ends at
// to at the latest.
func (s *sheet) cut(i, to, size int) int {
	n, _ := slices.BinarySearch(s.ends[i:to], s.start(i)+size)
	return min(i+n+1, to)
}

// cover returns the stretches of a list of records, and how many of the records are not in the sheet. The stretches of
// these have no content yet. Records are identified by their addresses.
func (s *sheet) cover(records []*state.Service) (list []stretch, missed int) {
	i := 0
	for j := 0; j < len(records); {
		for i < len(s.records) && s.records[i] != records[j] && s.records[i].Name.Compare(records[j].Name) < 0 {
			i++
		}
		from := i
		for i < len(s.records) && j < len(records) && s.records[i] == records[j] {
			i++
			j++
		}
		if i > from {
			list = append(list, stretch{sheet: s, from: from, to: i})
			continue
		}
		list = append(list, stretch{from: j, to: j + 1})
		missed++
		j++
	}
	return list, missed
}

// sheets are the sheets of an Encoder. The latest one is kept. Others are kept while they are being sent, such as the
// sheets of several zones while all nodes reconnect.
type sheets struct {
	making sync.Mutex // held while one is made, so that other callers that need the same wait for it
	mu     sync.Mutex // guards all below
	latest *sheet
	known  []weak.Pointer[sheet] // the newest last
}

// maxSheets is enough for the zones of a cluster.
const maxSheets = 8

// all returns the sheets that there are, the newest first.
func (s *sheets) all() (list []*sheet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.DeleteFunc(s.known, func(w weak.Pointer[sheet]) bool {
		kept := w.Value()
		if kept != nil {
			list = append(list, kept)
		}
		return kept == nil
	})
	slices.Reverse(list)
	return list
}

func (s *sheets) add(made *sheet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = made
	if len(s.known) == maxSheets {
		s.known = slices.Delete(s.known, 0, 1)
	}
	s.known = append(s.known, weak.Make(made))
}

// fewMissed is which part of a state's records may be missed without a new sheet: those that are different for each node.
const fewMissed = 64

// stretches marshals the records of a full state that no other state shares. It makes a new sheet once about as many
// records were marshalled in addition to the old sheet as a new sheet needs.
func (e *Encoder) stretches(records []*state.Service) []stretch {
	if len(records) == 0 {
		return nil
	}
	few := len(records) / fewMissed
	enough := func(best *sheet, missed int) bool {
		return best != nil && (missed <= few || best.missed.Load() < int64(len(records)))
	}
	best, list, missed := e.sheets.best(records)
	if best != nil && missed > few {
		best.missed.Add(int64(missed))
	}
	if !enough(best, missed) {
		e.sheets.making.Lock()
		defer e.sheets.making.Unlock()
		// Another caller may have made it.
		if best, list, missed = e.sheets.best(records); !enough(best, missed) {
			best = newSheet(records, list)
			e.sheets.add(best)
			list = []stretch{{sheet: best, to: len(records)}}
		}
	}
	for i := range list {
		if p := &list[i]; p.sheet == nil {
			p.alone = encode(Service(records[p.from]))
		}
	}
	return list
}

// best finds the sheet that has most of the records. It returns nil if there is none.
func (s *sheets) best(records []*state.Service) (best *sheet, list []stretch, missed int) {
	for _, candidate := range s.all() {
		l, m := candidate.cover(records)
		if best == nil || m < missed {
			best, list, missed = candidate, l, m
		}
		if missed <= len(records)/fewMissed {
			break
		}
	}
	return best, list, missed
}

// newSheet marshals records, but for those that list has on a sheet already.
func newSheet(records []*state.Service, list []stretch) *sheet {
	if len(list) == 0 {
		list = []stretch{{to: len(records)}}
	}
	s := &sheet{records: records, ends: make([]int, 0, len(records))}
	for _, p := range list {
		switch {
		case p.sheet != nil:
			shift := len(s.bytes) - p.sheet.start(p.from)
			s.bytes = append(s.bytes, p.sheet.bytes[p.sheet.start(p.from):p.sheet.ends[p.to-1]]...)
			for _, end := range p.sheet.ends[p.from:p.to] {
				s.ends = append(s.ends, end+shift)
			}
		default:
			for _, r := range records[p.from:p.to] {
				s.bytes = append(append(s.bytes, tags[fieldChanged].ReadOnlyData()...), encode(Service(r)).ReadOnlyData()...)
				s.ends = append(s.ends, len(s.bytes))
			}
		}
	}
	s.bytes = append(make([]byte, 0, len(s.bytes)), s.bytes...) // in a buffer of exact size
	return s
}
