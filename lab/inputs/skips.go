package inputs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// skips counts and lists skipped files and objects.
type skips struct {
	// kinds counts objects.
	kinds map[string]int
	// foreign are files that are no manifests, each with the reason.
	foreign []string
	// sources is set if another tool makes manifests of one of them.
	sources bool
	// same counts objects that were given again without a difference.
	same int
}

func (s *skips) object(o manifest.Skipped) {
	if s.kinds == nil {
		s.kinds = make(map[string]int)
	}
	s.kinds[o.Kind]++
}

// isForeign reports whether an error is about a file that is no manifest, and notes it if so.
func (l *Loaded) isForeign(err error) bool {
	fault, ok := errors.AsType[*manifest.ForeignError](err)
	if !ok {
		return false
	}
	l.skipped.sources = l.skipped.sources || fault.Source
	e, _ := errors.AsType[*manifest.Error](err)
	l.skipped.foreign = append(l.skipped.foreign, fmt.Sprintf("%s: %s", e.File, fault))
	return true
}

// foreign notes a file that is no manifest. If whole is set, it is an error.
func (l *Loaded) foreign(err *manifest.Error, whole bool) {
	if whole || !l.isForeign(err) {
		l.Errs = append(l.Errs, err)
	}
}

// listed are the kinds that people look for first.
var listed = []string{"Job", "CronJob", "Ingress", "CustomResourceDefinition"}

// maxForeign is how many files that are no manifests are listed.
const maxForeign = 3

// notes describes the skipped files and objects, in a line for each reason.
func (s *skips) notes() []string {
	var notes []string
	if len(s.kinds) > 0 {
		var items []string
		others := maps.Clone(s.kinds)
		for _, kind := range listed {
			if n := others[kind]; n > 0 {
				items = append(items, count(n, kind))
			}
			delete(others, kind)
		}
		rest := slices.SortedFunc(maps.Keys(others), func(a, b string) int {
			if d := others[b] - others[a]; d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		const most = 6
		for i, kind := range rest {
			if len(items) >= most && len(rest)-i > 1 {
				n := 0
				for _, kind := range rest[i:] {
					n += others[kind]
				}
				items = append(items, fmt.Sprintf("%d of other kinds", n))
				break
			}
			items = append(items, count(others[kind], kind))
		}
		notes = append(notes, "skipped, because no connection is routed by them: "+strings.Join(items, ", "))
	}
	for i, text := range s.foreign {
		if i >= maxForeign && len(s.foreign)-i > 1 {
			notes = append(notes, fmt.Sprintf("skipped %d more files that are no manifests", len(s.foreign)-i))
			break
		}
		notes = append(notes, "skipped "+text)
	}
	if s.same > 0 {
		notes = append(notes, fmt.Sprintf("skipped %s given twice without a difference", count(s.same, "object")))
	}
	return notes
}

// count is a number with a noun: 2 Ingresses.
func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		if noun == "Endpoints" {
			return fmt.Sprintf("%d %s", n, noun)
		}
		return fmt.Sprintf("%d %ses", n, noun)
	case strings.HasSuffix(noun, "y") && !strings.HasSuffix(noun, "ay"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(noun, "y"))
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
