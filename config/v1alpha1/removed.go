package v1alpha1

// Removed are fields that kube-proxy's files once had, with the release of Kubernetes that removed them and what to do.
var Removed = map[string]string{
	"conntrack.max":     "Kubernetes 1.16 removed it: use conntrack.maxPerCore and conntrack.min",
	"resourceContainer": "Kubernetes 1.16 removed it: leave it out",
	"udpIdleTimeout":    "it was for the mode userspace, which Kubernetes 1.26 removed: leave it out; conntrack.udpTimeout is for connection tracking",
}
