// Package server hands out the states of nodes by the node-local API, switchyard.localnet.v1.
//
// A [Server] gets the states from feeds, one for each node, and serves them over gRPC to any number of clients: whole (Next), or
// what has changed (Watch), at each client's pace. What it keeps for a client does not grow with the state, nor with how slow
// the client is; a record is marshalled once, however many clients get it.
//
// Who may connect is decided by the socket. A unix socket is for root, the user of the server and users that are listed, as far as its
// permissions let them in, and TCP on a loopback address for everybody on the machine; both may ask for any node. On any other address the server speaks TLS only and asks for a
// certificate, which reports what its holder may have:
//
//   - common name "system:node:NAME" and organisation "system:nodes", as kubelets' certificates have them: the state of node NAME.
//   - organisation "switchyard:relays": the state of any node, and all other services.
//
// With the certificate of a node there may be 8 connections, and 8 streams on all of them together; a new one ends the oldest.
package server
