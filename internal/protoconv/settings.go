package protoconv

import (
	"fmt"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// podDetection returns the message of a detector. One with several ways has no mode, and is refused where it is read.
func podDetection(d *state.LocalDetector) *localnetv1.PodDetection {
	if d == nil {
		return nil
	}
	m := &localnetv1.PodDetection{
		ClusterCidrs: messages(d.ClusterCIDRs, fillPrefix), BridgeInterface: text(d.BridgeInterface), InterfaceNamePrefix: text(d.InterfacePrefix),
	}
	switch cidrs, bridge, prefix := len(d.ClusterCIDRs) > 0, d.BridgeInterface != "", d.InterfacePrefix != ""; {
	case cidrs && !d.NodeCIDR:
		m.Mode = localnetv1.PodDetectionMode_POD_DETECTION_MODE_CLUSTER_CIDR
	case d.NodeCIDR && !cidrs:
		m.Mode = localnetv1.PodDetectionMode_POD_DETECTION_MODE_NODE_CIDR
	case d.NodeCIDR:
	case bridge:
		m.Mode = localnetv1.PodDetectionMode_POD_DETECTION_MODE_BRIDGE_INTERFACE
	case prefix:
		m.Mode = localnetv1.PodDetectionMode_POD_DETECTION_MODE_INTERFACE_NAME_PREFIX
	default:
		m.Mode = localnetv1.PodDetectionMode_POD_DETECTION_MODE_NONE
	}
	return m
}

// parsePodDetection reads a detector. It is nil if the message is not set, or has a mode of a later version.
func parsePodDetection(m *localnetv1.PodDetection) (*state.LocalDetector, error) {
	if m == nil {
		return nil, nil
	}
	cidrs, err := parseMasked("cluster_cidrs", m.GetClusterCidrs())
	if err != nil {
		return nil, err
	}
	d := &state.LocalDetector{ClusterCIDRs: cidrs, BridgeInterface: m.GetBridgeInterface(), InterfacePrefix: m.GetInterfaceNamePrefix()}
	var want localnetv1.PodDetection // the fields that the mode uses
	switch m.GetMode() {
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_UNSPECIFIED:
		return nil, fmt.Errorf("mode is not set")
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_NONE:
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_CLUSTER_CIDR:
		want.ClusterCidrs = m.GetClusterCidrs()
		if len(cidrs) == 0 {
			return nil, fmt.Errorf("cluster_cidrs is empty, and the mode needs one")
		}
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_NODE_CIDR:
		d.NodeCIDR = true
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_BRIDGE_INTERFACE:
		want.BridgeInterface = m.GetBridgeInterface()
		err = checkInterface("bridge_interface", want.BridgeInterface)
	case localnetv1.PodDetectionMode_POD_DETECTION_MODE_INTERFACE_NAME_PREFIX:
		want.InterfaceNamePrefix = m.GetInterfaceNamePrefix()
		err = checkInterface("interface_name_prefix", want.InterfaceNamePrefix)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(cidrs) != len(want.ClusterCidrs) || d.BridgeInterface != want.BridgeInterface || d.InterfacePrefix != want.InterfaceNamePrefix {
		return nil, fmt.Errorf("more is set than mode %v needs", m.GetMode())
	}
	return d, nil
}

// checkInterface checks the name of an interface, or the beginning of one.
func checkInterface(what, name string) error {
	if !state.IsInterfaceName(name) {
		return fmt.Errorf("%s must be an interface's name of 1 to %d bytes, got %s", what, state.MaxInterfaceName, quote(name))
	}
	return nil
}

func nodePortAddresses(a *state.NodePortAddresses) *localnetv1.NodePortAddresses {
	if a == nil {
		return nil
	}
	return &localnetv1.NodePortAddresses{Primary: a.Primary, Cidrs: messages(a.CIDRs, fillPrefix)}
}

// parseNodePortAddresses reads the addresses of NodePorts. They are nil if the message is not set.
func parseNodePortAddresses(m *localnetv1.NodePortAddresses) (*state.NodePortAddresses, error) {
	if m == nil {
		return nil, nil
	}
	cidrs, err := parseMasked("cidrs", m.GetCidrs())
	if err != nil {
		return nil, err
	}
	return &state.NodePortAddresses{Primary: m.GetPrimary(), CIDRs: cidrs}, nil
}
