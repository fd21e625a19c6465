package client

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/switchyard-net/switchyard/client/peeruser"
)

// socketCredentials are the credentials of a plain connection to a unix socket, which must be served by one of users.
type socketCredentials struct {
	credentials.TransportCredentials
	target string
	users  peeruser.Users
}

// ClientHandshake implements [credentials.TransportCredentials].
func (c socketCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if err := c.users.Check(conn); err != nil {
		return nil, nil, fmt.Errorf("%s is not trusted: %w; if the right one serves it, list its user (--socket-users, or SocketUsers in the options)", c.target, err)
	}
	return c.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone implements [credentials.TransportCredentials].
func (c socketCredentials) Clone() credentials.TransportCredentials {
	return socketCredentials{c.TransportCredentials.Clone(), c.target, c.users}
}
