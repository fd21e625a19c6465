package adminserver

import (
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
)

// disguised is a connection of a unix socket that hides its other end.
type disguised struct{ net.Conn }

func (disguised) LocalAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "/admin.sock"} }

// TestUnknownUser: a client whose user cannot be found out may call nothing.
func TestUnknownUser(t *testing.T) {
	c, stop := serve(t, newProcess(), func(conn net.Conn) net.Conn { return disguised{conn} })
	defer stop()
	_, err := c.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("GetStatus = %v", err)
	}
	stream, err := c.List(t.Context(), &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_NODE}})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("List = %v", err)
	}
}
