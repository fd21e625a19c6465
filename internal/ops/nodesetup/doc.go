// Package nodesetup writes the kernel settings that kube-proxy writes when it starts on Linux: limits and timeouts of connection
// tracking, and the process's OOM score.
//
// The figures are computed as kube-proxy does (pkg/proxy/conntrack/sysctls.go, cmd/kube-proxy/app/server.go). The one
// difference: a value that cannot be written is a warning, and the rest is still written. A node whose conntrack
// table is smaller than was asked for serves; a proxy in a crash loop does not. A value that is right already is not
// written, so that a node whose host has been set up needs no right to write.
//
// The limits nf_conntrack_max and hashsize belong to the kernel and can only be written from the host's network and
// user namespaces. The timeouts belong to the network namespace of the thread that calls [Apply]. All of these files
// exist only once the kernel module nf_conntrack is loaded.
package nodesetup
