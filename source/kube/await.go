package kube

import (
	"cmp"
	"fmt"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// Await says which fields of this Node the first state waits for, and how long. The times are kube-proxy's
// (NewNodeManager in k8s.io/kubernetes/pkg/proxy). Afterwards the source is complete without the fields. During the
// wait, the kernel keeps its previous rules.
type Await struct {
	// Addresses: the Node must have an address, within 30 s.
	Addresses bool
	// PodCIDRs: the Node must have a pod CIDR, within 5 min.
	PodCIDRs bool
}

// The longest waits.
const (
	awaitAddresses = 30 * time.Second
	awaitPodCIDRs  = 5 * time.Minute
)

// awaited returns the field that a Node still lacks, and how long to wait for it at most; an empty field if it lacks nothing. The Node may be nil.
func (a Await) awaited(n *model.Node) (field string, most time.Duration) {
	switch n = cmp.Or(n, &model.Node{}); {
	case a.PodCIDRs && len(n.PodCIDRs) == 0:
		return "spec.podCIDRs", awaitPodCIDRs
	case a.Addresses && len(n.Addresses) == 0:
		return "status.addresses", awaitAddresses
	}
	return "", 0
}

// waiting reports that the source waits for a field of the Node, which is a problem as long as it does.
type waiting struct {
	node, field string
	since       time.Time
	most        time.Duration
}

// Error names the missing fields, the start and the end of the wait.
func (w *waiting) Error() string {
	return fmt.Sprintf("the Node %s lacks %s; nothing is programmed before it has them, or before %s", w.node, w.field, w.since.Add(w.most).UTC().Format(time.RFC3339))
}

// isWhole reports whether the Node has the fields that the first state waits for, or has lacked them for too long.
// Otherwise again is the time of the next check.
func (d *delivery) isWhole() (whole bool, again <-chan time.Time) {
	field, most := d.source.options.Await.awaited(d.node)
	if field == "" {
		d.source.health.wait(nil)
		return true, nil
	}
	if d.listedAt.IsZero() {
		d.listedAt = time.Now()
	}
	w := &waiting{d.source.options.NodeName, field, d.listedAt, most}
	left := time.Until(w.since.Add(most))
	if left <= 0 {
		d.source.health.wait(nil)
		d.source.log.Warn("the Node still lacks a field that was waited for; going on without it", "node", w.node, "field", field, "after", most)
		return true, nil
	}
	d.source.health.wait(w)
	return false, time.After(left)
}
