//go:build linux

package conformance

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// StoryParams are for tests of the stories themselves.
func StoryParams(t *testing.T, d Dataplane) testscript.Params { return storyParams(unpack(t), d) }

// Evenness and EnoughToSee are tested from outside.
var (
	Evenness    = evenness
	EnoughToSee = enoughToSee
)
