package file

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestManyFaults: if all objects of a file are invalid, the number of reported faults is limited, and valid objects
// count.
func TestManyFaults(t *testing.T) {
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Service, metadata: {name: s%d}, spec: {clusterIPs: [x, q, z], type: %s}}\n", i, strings.Repeat("T", 200))
	}
	text.WriteString("---\n{apiVersion: v1, kind: Namespace, metadata: {name: good}}\n")
	claims, _, problems := read("f", []byte(text.String()))
	if len(claims) != 1 || len(problems) != maxProblems+1 {
		t.Fatalf("%d objects, %d problems", len(claims), len(problems))
	}
	if first := problems[0].Error(); !strings.HasPrefix(first, "f:2:91: Service s0: spec.type: must be ClusterIP") || len(first) > 400 {
		t.Errorf("the first problem is %s", first)
	}
	if last, want := problems[maxProblems].Error(), "f: has 11900 more errors: fix those listed first"; last != want {
		t.Errorf("the last problem is %s, want %s", last, want)
	}
	s := newState(slog.New(slog.DiscardHandler), 0)
	s.claim("f", &content{}, claims)
	if set, _ := s.changes(); len(set) != 1 || set[0].Ref().Name != "good" {
		t.Errorf("what counts is %v", set)
	}
}
