//go:build linux

package conformance

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// StoryParams are for tests of the stories themselves.
func StoryParams(t *testing.T, d Dataplane) testscript.Params {
	return storyParams(t.Context(), unpacked(t, d), d)
}

// Tracked returns d with its claims tracked, and what reports those that have not shown.
func Tracked(d Dataplane) (Dataplane, func() string) {
	d = d.withClaims()
	return d, func() string { return strings.Join(d.unshown(), "\n") }
}

// NoSCTP is the note about SCTP that a run prints.
func NoSCTP(d Dataplane) string { return d.noSCTP() }

// Evenness and EnoughToSee are tested from outside.
var (
	Evenness    = evenness
	EnoughToSee = enoughToSee
)
