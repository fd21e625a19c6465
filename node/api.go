package node

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/server"
)

// startAPI serves the pipeline's states over the node-local API, if c names a place.
func (p *pipeline) startAPI(n *Node, c *config.Config) {
	p.stopAPI = n.group.start(func(ctx context.Context) error {
		if len(c.API.Listen) == 0 || p.serve.Feed == nil {
			return nil
		}
		return p.serveAPI(ctx, n, &c.API)
	})
}

// serveAPI serves on all listeners until ctx ends. A process that routes does not end because one of them cannot be opened: it routes
// as well without the API.
func (p *pipeline) serveAPI(ctx context.Context, n *Node, c *config.API) error {
	listeners, err := listenersOf(c, n.fieldName)
	if err != nil {
		return err
	}
	o := p.serve
	o.OnStatus, o.OnClose, o.SocketUsers, o.Logger = n.followers.status, n.followers.gone, c.SocketUsers, n.log
	if n.fleet != nil {
		o.OnOpen, o.OnSend = n.fleet.opened, n.fleet.sent
		o.OnStatus = func(client server.Client, s server.Status) {
			n.followers.status(client, s)
			n.fleet.status(client, s)
		}
		o.OnClose = func(client server.Client) {
			n.followers.gone(client)
			n.fleet.gone(client)
		}
	}
	if n.o.Role != Proxy {
		n.audience.follow(&o)
	}
	o.MaxClients, o.MaxAge = n.files.apiClients(n.o.MaxClients, len(listeners), n.log), n.o.MaxConnectionAge
	s, err := server.New(o)
	if err != nil {
		if n.o.Role != Proxy {
			return err
		}
		n.log.Error("cannot serve the node-local API; correct api.socketUsers", "error", err)
		return nil
	}
	g := newGroup(ctx)
	for _, l := range listeners {
		if n.o.Role == Proxy {
			g.start(func(ctx context.Context) error {
				l.keepOpen(ctx, s, n.log)
				return nil
			})
			continue
		}
		if err := l.open(g, s, n.log); err != nil {
			g.fail(err)
			break
		}
	}
	return g.wait()
}

// listener is one address where clients connect.
type listener struct {
	address server.Address
	mode    fs.FileMode
	tls     *server.TLS // nil for plain connections
}

// CheckAPI returns an error if the addresses are invalid at which c serves the node-local API. fieldName returns the
// name of a field in messages. See [Options].
func CheckAPI(c *config.API, fieldName func(path string) string) error {
	_, err := listenersOf(c, fieldName)
	return err
}

// listenersOf reads the addresses to serve on.
func listenersOf(c *config.API, fieldName func(path string) string) (listeners []listener, err error) {
	at, tlsFields := fieldName("api.listen"), fmt.Sprintf("%s, %s and %s", fieldName("api.tlsCertFile"), fieldName("api.tlsKeyFile"), fieldName("api.clientCAFile"))
	tls := server.TLS{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile, ClientCAFile: c.ClientCAFile}
	permissions, err := strconv.ParseUint(c.SocketMode, 8, 32)
	if err != nil || permissions > 0o777 {
		return nil, fmt.Errorf("%s: %q is not permissions in octal such as 0600", fieldName("api.socketMode"), c.SocketMode)
	}
	for _, text := range c.Listen {
		l := listener{mode: fs.FileMode(permissions)}
		if l.address, err = server.ParseAddress(text); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		switch complete := tls.CertFile != "" && tls.KeyFile != "" && tls.ClientCAFile != ""; {
		case l.address.Network == "tcp" && complete:
			l.tls = &tls
		case l.address.Exposed():
			return nil, fmt.Errorf("%s: other machines can reach %s, which takes TLS: give %s, or choose a loopback address or a unix socket", at, text, tlsFields)
		case l.address.Network == "tcp" && tls != (server.TLS{}):
			return nil, fmt.Errorf("%s: TLS on %s takes all of %s", at, text, tlsFields)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// open serves on the listener, as a part of g.
func (l *listener) open(g *group, s *server.Server, log *slog.Logger) error {
	var at net.Listener
	at, err := server.Listen(g.ctx, l.address, l.mode, l.tls)
	if err != nil {
		return err
	}
	log.Debug("serving the node-local API", "address", l.address.String(), "tls", l.tls != nil, "since", time.Now().UTC())
	g.start(func(ctx context.Context) error { return s.Serve(ctx, at, l.tls) })
	return nil
}

// listenPause is the time between attempts to serve the API.
const listenPause = 5 * time.Second

// keepOpen serves on the listener until ctx ends, and tries again if it cannot.
func (l *listener) keepOpen(ctx context.Context, s *server.Server, log *slog.Logger) {
	reported := ""
	for ctx.Err() == nil {
		at, err := server.Listen(ctx, l.address, l.mode, l.tls)
		if err == nil {
			reported = ""
			err = s.Serve(ctx, at, l.tls)
		}
		if err != nil && ctx.Err() == nil && err.Error() != reported {
			reported = err.Error()
			log.Error("cannot serve the node-local API, will retry", "address", l.address.String(), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
}
