//go:build linux

package conformance

import (
	"errors"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// TestNotApplied checks that the error of a late dataplane distinguishes a missing status from an old one.
func TestNotApplied(t *testing.T) {
	none := map[state.ServiceName]error{}
	for _, c := range []struct {
		status  backend.Status
		follows bool
		want    string
	}{
		{backend.Status{}, true, "no status was received: the dataplane must report its position in WatchRequest.status"},
		{backend.Status{Failed: none}, true, "the dataplane is at revision 0"},
		{backend.Status{Applied: 1, Failed: none}, true, "the dataplane is at revision 1"},
		{backend.Status{}, false, "the dataplane is at revision 0"},
		{backend.Status{Applied: 1, Err: errors.New("no room")}, false, "the dataplane is at revision 1: no room"},
	} {
		want := "revision 2 is not applied after 20s: " + c.want
		if got := notApplied(2, c.status, c.follows).Error(); got != want {
			t.Errorf("%+v: %q, want %q", c.status, got, want)
		}
	}
}
