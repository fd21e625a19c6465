// Package switchyard is a map of the Go API of Switchyard, a node-local service proxy for Kubernetes. It declares nothing itself:
// import the packages that it names.
//
// A change goes one way, from the cluster's objects to the kernel:
//
//	source/*  ──▶  model  ──▶  brain  ──▶  store  ──▶  backend.Run  ──▶  a dataplane
//
// # To run a service proxy in a program of your own
//
// Package [node] is the whole runtime of a node, with health, metrics and the node-local API: make a Config of package [config],
// choose a source, call node.New and Run. Sources are [source/file] for manifests, [source/kube] for an API server, the only package
// that links client-go, and [source/relay] for another Switchyard. examples/embed is such a program.
//
// # To write a dataplane
//
// Read [state]: records of where connections go, with all of Kubernetes' rules applied. Then either
//
//   - implement the Sink of [client], a module of its own: a process of its own follows the node-local API of 'switchyard serve', as
//     dataplanes in other languages do; or
//   - implement the Backend of [backend], in the process that computes the states, and hand it to package node (Options.Dataplane) or
//     to backend.Run.
//
// Package [conformance] tests either with real packets. [kernel/staleflows] and [kernel/ifaddr] do what every dataplane on Linux
// needs beside its own rules; [backend/nftables] is a complete one. docs/write-a-dataplane.md goes from nothing to a dataplane that
// passes the suite.
//
// # To compute routing without programming it
//
// Package [kubeconv] turns API objects into the small values of [model]. [brain] is a pure function from a Service, its
// EndpointSlices and a Node to a record. [store] does that for all Services as they change, of one node or of every node, and
// publishes revisions; [server] serves them over the node-local API.
//
// # For operators
//
// Package [config/configfile] reads, converts and checks the files of kube-proxy and of Switchyard. Package node serves and sets up
// what is in [ops/healthz], [ops/servicehealth], [ops/metrics] and [ops/nodesetup].
//
// docs/stability.md has what may change between releases, ARCHITECTURE.md all packages with the laws that keep them apart.
//
// [node]: https://pkg.go.dev/github.com/switchyard-net/switchyard/node
// [config]: https://pkg.go.dev/github.com/switchyard-net/switchyard/config
// [source/file]: https://pkg.go.dev/github.com/switchyard-net/switchyard/source/file
// [source/kube]: https://pkg.go.dev/github.com/switchyard-net/switchyard/source/kube
// [source/relay]: https://pkg.go.dev/github.com/switchyard-net/switchyard/source/relay
// [state]: https://pkg.go.dev/github.com/switchyard-net/switchyard/state
// [client]: https://pkg.go.dev/github.com/switchyard-net/switchyard/client
// [backend]: https://pkg.go.dev/github.com/switchyard-net/switchyard/backend
// [conformance]: https://pkg.go.dev/github.com/switchyard-net/switchyard/conformance
// [kernel/staleflows]: https://pkg.go.dev/github.com/switchyard-net/switchyard/kernel/staleflows
// [kernel/ifaddr]: https://pkg.go.dev/github.com/switchyard-net/switchyard/kernel/ifaddr
// [backend/nftables]: https://pkg.go.dev/github.com/switchyard-net/switchyard/backend/nftables
// [kubeconv]: https://pkg.go.dev/github.com/switchyard-net/switchyard/kubeconv
// [model]: https://pkg.go.dev/github.com/switchyard-net/switchyard/model
// [brain]: https://pkg.go.dev/github.com/switchyard-net/switchyard/brain
// [store]: https://pkg.go.dev/github.com/switchyard-net/switchyard/store
// [server]: https://pkg.go.dev/github.com/switchyard-net/switchyard/server
// [config/configfile]: https://pkg.go.dev/github.com/switchyard-net/switchyard/config/configfile
// [ops/healthz]: https://pkg.go.dev/github.com/switchyard-net/switchyard/ops/healthz
// [ops/servicehealth]: https://pkg.go.dev/github.com/switchyard-net/switchyard/ops/servicehealth
// [ops/metrics]: https://pkg.go.dev/github.com/switchyard-net/switchyard/ops/metrics
// [ops/nodesetup]: https://pkg.go.dev/github.com/switchyard-net/switchyard/ops/nodesetup
package switchyard
