// Package server serves the states of nodes by the node-local API, switchyard.localnet.v1.
//
// A [Server] gets the states from feeds, one for each node, and serves them over gRPC to any number of clients, at each
// client's pace. Next returns whole states, and Watch returns changes. The memory for a client does not grow with the
// state, nor with the client's delay. A record is marshalled once for all clients.
//
// The socket decides who may connect. A unix socket admits root, the user of the server and listed users, if its
// permissions allow them to connect. TCP on a loopback address admits everybody on the machine. Clients of both may ask
// for any node. On any other address the server requires TLS and a client certificate. The certificate decides what its
// holder may have:
//
//   - common name "system:node:NAME" and organisation "system:nodes", as kubelets' certificates have them: the state of
//     node NAME.
//   - organisation "switchyard:relays": the state of any node, and all other services.
//
// Each node's certificate allows 8 connections, and 8 streams on all of them together; a new one ends the oldest.
package server
