package model_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/model"
)

// names are all names of n endpoints.
func names(p model.PodNames, n int) (list []string) {
	for i := range n {
		list = append(list, p.At(i))
	}
	return list
}

// TestPodNames: packed names come back unchanged, and take few bytes.
func TestPodNames(t *testing.T) {
	var replicas []string
	for i := range 100 {
		replicas = append(replicas, fmt.Sprintf("frontend-6d9f8c6b5d-%05d", i))
	}
	long := strings.Repeat("x", 253)
	for name, c := range map[string]struct {
		names, want []string
		most        int
	}{
		"none":          {nil, nil, 0},
		"unknown":       {[]string{"", ""}, []string{"", ""}, 0},
		"one":           {[]string{"web-0"}, []string{"web-0"}, 9},
		"some":          {[]string{"", "web-0", "", "web-1"}, []string{"", "web-0", "", "web-1"}, 16},
		"equal":         {[]string{"web", "web"}, []string{"web", "web"}, 10},
		"one begins so": {[]string{"web-1", "web", "web-10"}, []string{"web-1", "web", "web-10"}, 18},
		"nothing alike": {[]string{"a", "b.c"}, []string{"a", "b.c"}, 10},
		"a ReplicaSet":  {replicas, replicas, 730},
		"the longest":   {[]string{long}, []string{long}, 257},
		"too long":      {[]string{long + "x", "web-0"}, []string{"", "web-0"}, 11},
		"no names":      {[]string{"Web", "web_0", "\x1b[31m", "wéb", "web 0", "\xff", "web-0"}, []string{"", "", "", "", "", "", "web-0"}, 22},
	} {
		p := model.PackPods("", c.names)
		if got := names(p, len(c.names)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if len(p) > c.most {
			t.Errorf("%s: takes %d bytes, want %d at most", name, len(p), c.most)
		}
		if again := model.PackPods(p.Split()); again != p {
			t.Errorf("%s: packed again, it is %q, want %q", name, again, p)
		}
		if p.At(-1) != "" || p.At(len(c.names)) != "" {
			t.Errorf("%s: there are names of endpoints that do not exist", name)
		}
	}
	if a, b := model.PackPods("web-", []string{"a", "", "b"}), model.PackPods("", []string{"web-a", "", "web-b"}); a != b {
		t.Errorf("with a prefix, names are packed as %q, without as %q", a, b)
	}
	if p := model.PackPods(long, []string{"x", ""}); p != "" {
		t.Errorf("a prefix as long as a name makes %q", p)
	}
	if p := model.PackPods("Web", []string{"x"}); p != "" {
		t.Errorf("a prefix that no name has makes %q", p)
	}
}

// TestHostilePodNames: names of any length take less memory than their endpoints, and some remain.
func TestHostilePodNames(t *testing.T) {
	for _, n := range []int{1, 2, 10, 100, 1000, 2000, 100_000} {
		var all []string
		for i := range n {
			id := fmt.Sprintf("%06d", i) // at the begin, so that names share nothing
			all = append(all, id[5:]+id[:5]+strings.Repeat("x", 247))
		}
		p := model.PackPods("", all)
		if most := 253 + 66*n + 2; len(p) > min(most, 64<<10+2*(n+1)) {
			t.Errorf("%d names take %d bytes", n, len(p))
		}
		if p.At(0) != all[0] {
			t.Errorf("of %d names, even the first is left out", n)
		}
		for i, name := range names(p, n) {
			if name != "" && name != all[i] {
				t.Fatalf("name %d of %d is %q", i, n, name)
			}
		}
	}
	// Names as controllers generate them all fit: they have 63 bytes at most.
	var all []string
	for i := range 1000 {
		id := fmt.Sprintf("%06d", i)
		all = append(all, id[5:]+id[:5]+strings.Repeat("x", 57))
	}
	if got := names(model.PackPods("", all), len(all)); !slices.Equal(got, all) {
		t.Error("some of 1,000 names of 63 bytes are left out")
	}
}

// FuzzPodNames packs any names. Each of them comes back or is left out. Texts that were never packed do no harm.
func FuzzPodNames(f *testing.F) {
	for _, seed := range []string{
		"", "web-0", "web-0,web-1", "web-0,,web-1", "a,aa,aaa", "web-6d9f8c6b5d-x7k2p,web-7c5b9f44d8-q2w3e", "Web,web", "\x00\x00\x00\x02", "ab\x00\x01\x00\x02",
		"a\xff\xff\x00\x01", "\xff\xff\xff\xff", strings.Repeat("x", 254) + ",x", strings.Repeat(strings.Repeat("x", 253)+",", 5), strings.Repeat(",", 300),
	} {
		f.Add("", seed)
		f.Add("web-", seed)
	}
	f.Fuzz(func(t *testing.T, prefix, joined string) {
		rests := strings.Split(joined, ",")
		p := model.PackPods(prefix, rests)
		for i, rest := range rests {
			if name := p.At(i); name != "" && name != prefix+rest {
				t.Fatalf("name %d of %q with %q is %q", i, rests, prefix, name)
			}
		}
		if len(p) > 253+66*len(rests)+2 {
			t.Fatalf("%d names take %d bytes", len(rests), len(p))
		}
		again := model.PackPods(p.Split())
		if !slices.Equal(names(again, len(rests)), names(p, len(rests))) {
			t.Fatalf("%q is %q when packed again", p, again)
		}
		loose := model.PodNames(joined)
		_, parts := loose.Split()
		for i, part := range parts {
			if name := loose.At(i); part != "" && !strings.HasSuffix(name, part) {
				t.Fatalf("name %d of %q is %q, and its rest %q", i, joined, name, part)
			}
		}
	})
}
