package protoconv_test

import (
	"strings"
	"testing"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// TestFeatures: each feature has a number on the wire, under the same name, and sets come back.
func TestFeatures(t *testing.T) {
	if known := len(localnetv1.Feature_name) - 1; known != len(protoconv.Features(state.AllFeatures)) {
		t.Errorf("the protocol has %d features, package state %v", known, state.AllFeatures)
	}
	for f := range state.AllFeatures + 1 {
		list := protoconv.Features(f)
		if got := protoconv.ParseFeatures(list); got != f {
			t.Errorf("went %v, came %v", f, got)
		}
		var names []string
		for _, one := range list {
			names = append(names, strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(one.String(), "FEATURE_")), "_", "-"))
		}
		if f != 0 && strings.Join(names, ",") != f.String() {
			t.Errorf("%v is %v in the protocol", f, names)
		}
	}
	if got := protoconv.ParseFeatures([]localnetv1.Feature{0, -1, 8, 9, 10, 1 << 30, 1}); got != state.Weights {
		t.Errorf("of values that are not known came %v", got)
	}
}
