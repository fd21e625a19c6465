package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/client/tlsfiles"
	"github.com/switchyard-net/switchyard/internal/connlimit"
)

// rooms are how many connections a listener has. Clients that are not authenticated yet have room of their own, so that
// they cannot take it from those that are. Root and the user of this process have some places that no other user can
// take.
type rooms struct{ clients, reserved, strangers *connlimit.Pool }

// reservedPlaces is how many connections over unix sockets are reserved for root and the user of this process, in
// addition to the clients' connections. It is enough for the node's dataplane and for people who inspect it.
const reservedPlaces = 8

// shareOf returns how many of the clients' connections one address may have, and how many strangers may connect in
// addition.
func shareOf(clients int) int { return max(clients/4, min(4*clients, minShare)) }

// ClientsOf returns the largest [Options.MaxClients], at least 1, with which a listener has so many connections at most.
func ClientsOf(connections int) int {
	// A share is four times few clients, minShare for more, and a quarter of many.
	connections -= reservedPlaces
	return max(min((connections*4+3)/5, max(connections/5, connections-minShare)), 1)
}

func (s *Server) rooms(listener string) rooms {
	share := shareOf(s.o.MaxClients)
	whole := connlimit.New(connlimit.Options{Name: listener, Max: s.o.MaxClients + reservedPlaces + share, Open: &s.clients, Logger: s.log})
	return rooms{
		clients:  whole.Part(connlimit.Options{Name: listener, Max: s.o.MaxClients, PerClient: share, Logger: s.log}),
		reserved: whole.Part(connlimit.Options{Name: listener + ", reserved for root", Max: reservedPlaces, Logger: s.log}),
		// A new stranger replaces a waiting one, so that waiting strangers cannot block new ones.
		strangers: whole.Part(connlimit.Options{Name: listener + ", before a certificate", Max: share, Replace: true, Logger: s.log}),
	}
}

// room is where a connection may count that has just been accepted, in this order.
func (v *listening) room(conn net.Conn) []*connlimit.Pool {
	if v.files != nil || v.users.Check(conn) != nil {
		return []*connlimit.Pool{v.rooms.strangers}
	}
	if _, other := peeruser.Other(conn); other || conn.LocalAddr().Network() != "unix" {
		return []*connlimit.Pool{v.rooms.clients}
	}
	return []*connlimit.Pool{v.rooms.clients, v.rooms.reserved}
}

// identifying are credentials that find out who a client is.
type identifying struct {
	credentials.TransportCredentials // of a plain connection
	v                                *listening
}

func (v *listening) credentials() credentials.TransportCredentials {
	return identifying{insecure.NewCredentials(), v}
}

// handshake is the TLS handshake, if the listener has TLS.
func (c identifying) handshake(raw *connection) (net.Conn, credentials.AuthInfo, error) {
	files := c.v.files
	if files == nil {
		return c.TransportCredentials.ServerHandshake(raw)
	}
	conn, info, config, err := c.v.handshakes.shake(raw)
	if err != nil {
		return nil, nil, err
	}
	guarded := files.Guard(conn, tlsfiles.Peer{Config: config, State: info.(credentials.TLSInfo).State, Options: verifyClient})
	raw.afterwards(guarded.Stop)
	return guarded, info, nil
}

// verifyClient is how crypto/tls verifies clients' certificates.
func verifyClient(c *tls.Config) x509.VerifyOptions {
	return x509.VerifyOptions{Roots: c.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// identity has the known facts about a connection, for its calls.
type identity struct {
	credentials.AuthInfo
	caller
	// until is when the calls of the connection end, zero for never.
	until time.Time
	conn  *connection
}

// ServerHandshake implements [credentials.TransportCredentials]. If a client has no permission at all, its connection
// is closed after the duration of a handshake. Until then it is answered, so that the client can read the reason.
func (c identifying) ServerHandshake(accepted net.Conn) (net.Conn, credentials.AuthInfo, error) {
	v, raw := c.v, accepted.(*connection)
	conn, info, err := c.handshake(raw)
	if err != nil {
		return nil, nil, err
	}
	who := v.callerBy(raw, info)
	if who.node != "" && !who.relay {
		raw.afterwards(v.nodeConns.enter(who.node, func() { _ = raw.Close() }))
	}
	if v.files != nil && who.isSomebody() && !connlimit.Move(raw.Conn, v.rooms.clients) {
		who = caller{denied: status.Error(codes.ResourceExhausted, "too many clients; retry later")}
	}
	if !who.isSomebody() {
		timeout := time.AfterFunc(connectTimeout, func() { _ = raw.Close() })
		raw.afterwards(func() { timeout.Stop() })
	}
	return conn, identity{info, who, v.until(), raw}, nil
}

// callerBy returns who a connection comes from.
func (v *listening) callerBy(raw net.Conn, info credentials.AuthInfo) caller {
	if secure, ok := info.(credentials.TLSInfo); ok {
		return certified(secure.State)
	}
	err := v.users.Check(raw)
	if err == nil {
		return caller{trusted: true}
	}
	v.log.Warn("rejecting a process of another user on the unix socket", "address", v.address, "error", err)
	return caller{denied: status.Errorf(codes.PermissionDenied, "%v: %v; to allow it, list its user (--socket-users, api.socketUsers)", v.address, err)}
}

// until is when the calls of a new connection end, zero for never.
func (v *listening) until() time.Time {
	if v.files == nil || v.o.MaxAge < 0 {
		return time.Time{}
	}
	return time.Now().Add(v.o.MaxAge - rand.N(v.o.MaxAge/5+1))
}

// Clone implements [credentials.TransportCredentials].
func (c identifying) Clone() credentials.TransportCredentials {
	return identifying{c.TransportCredentials.Clone(), c.v}
}

// identityOf returns the identity of a call's connection.
func identityOf(ctx context.Context) identity {
	if p, ok := peer.FromContext(ctx); ok {
		if id, ok := p.AuthInfo.(identity); ok {
			return id
		}
	}
	return identity{}
}
