// Package localnetv1 is the code of the node-local API, generated from client/proto/switchyard/localnet/v1/localnet.proto, which is its manual.
//
// Package client follows the API, and [github.com/switchyard-net/switchyard/client.RunSink] keeps a dataplane in step with it.
package localnetv1
