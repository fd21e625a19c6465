package apirules

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// leaderAnnotation is on Endpoints that are the lock of a leader election.
const leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"

// IsMirrored reports whether a controller of the cluster makes EndpointSlices of Endpoints that were written by hand.
// It does not for Endpoints that opt out, nor for Endpoints of leader elections (endpointslicemirroring in
// k8s.io/kubernetes).
func IsMirrored(e *corev1.Endpoints) bool {
	_, elected := e.Annotations[leaderAnnotation]
	return !elected && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}
