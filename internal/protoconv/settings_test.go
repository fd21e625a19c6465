package protoconv_test

import (
	"testing"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

func TestDetectorsRoundTrip(t *testing.T) {
	for _, d := range []state.LocalDetector{
		{}, {ClusterCIDRs: prefixes("fd00::/16")}, {NodeCIDR: true}, {BridgeInterface: "cni0"}, {InterfacePrefix: "veth"},
	} {
		n, err := protoconv.ParseNode(transmit(t, protoconv.Node(&state.Node{LocalDetector: &d})))
		if err != nil || n.LocalDetector == nil || !n.LocalDetector.Equal(d) {
			t.Errorf("%v came back as %v, %v", d, n.LocalDetector, err)
		}
	}
}

// TestDetectionOfALaterVersion: a mode that is not known is as good as none: the dataplane's own configuration decides.
func TestDetectionOfALaterVersion(t *testing.T) {
	n, err := protoconv.ParseNode(&localnetv1.Node{Name: "n", PodDetection: &localnetv1.PodDetection{Mode: 99}})
	if err != nil || n.LocalDetector != nil {
		t.Errorf("got %v, %v, want a node that does not say", n, err)
	}
}

// TestFaultySettings: a node keeps what can be read, and each setting that cannot be read is named.
func TestFaultySettings(t *testing.T) {
	m := protoconv.Node(fullNode())
	m.PodDetection.Mode, m.NodePortAddresses.Cidrs[0].Length = 0, 33
	n, err := protoconv.ParseNode(m)
	expect(t, err, []string{"pod_detection: mode is not set", "node_port_addresses: cidrs[0].length is 33"})
	want := fullNode()
	want.LocalDetector, want.NodePorts = nil, nil
	if n == nil || !n.Equal(want) {
		t.Errorf("got %+v, want %+v", n, want)
	}
}
