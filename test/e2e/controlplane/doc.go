// Package controlplane runs a real Kubernetes control plane for one test: etcd, kube-apiserver, and on request
// kube-controller-manager, as released upstream.
//
// Each control plane is alone in a network namespace. So any number of them can run at a time on the usual ports, and
// nothing outside reaches them. [ControlPlane.Config] connects from anywhere in this process; [ControlPlane.Expose]
// lets another namespace, such as a node of a lab, connect to an address of its own.
package controlplane
