package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/server"
)

// startAPI serves the line's states over the node-local API, if c says where.
func (l *line) startAPI(g *group, d *daemon, c *config.Config) {
	l.stopAPI = g.start(func(ctx context.Context) error {
		if len(c.API.Listen) == 0 {
			return nil
		}
		return l.serveAPI(ctx, &c.API, d.files, d.log)
	})
}

func (l *line) serveAPI(ctx context.Context, c *config.API, files shares, log *slog.Logger) error {
	tls := server.TLS{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile, ClientCAFile: c.ClientCAFile}
	doors, err := doorsOf(c.Listen, c.SocketMode, tls, "api.listen", "api.socketMode", "api.tlsCertFile, api.tlsKeyFile and api.clientCAFile")
	if err != nil {
		return err
	}
	followers := newWatchers(log)
	s, err := server.New(server.Options{
		OnStatus: followers.status, OnClose: followers.gone, Node: l.name, SocketUsers: c.SocketUsers, Logger: log,
		Feed: server.Only(l.name, l.store), MaxClients: files.apiClients(0, len(doors), log),
	})
	if err != nil {
		// A user that this host does not have is no reason to end the process, which routes as well without the API.
		log.Error("cannot serve the node-local API; correct api.socketUsers", "error", err)
		return nil
	}
	g := newGroup(ctx)
	for _, door := range doors {
		g.start(func(ctx context.Context) error {
			door.keepOpen(ctx, s, log)
			return nil
		})
	}
	return g.wait()
}

// doorPause is the time between attempts to serve the API.
const doorPause = 5 * time.Second

// keepOpen serves on the door until ctx ends. That it cannot be opened is no reason to end the process, which routes as well
// without it.
func (d *door) keepOpen(ctx context.Context, s *server.Server, log *slog.Logger) {
	told := ""
	for ctx.Err() == nil {
		l, err := server.Listen(ctx, d.address, d.mode, d.tls)
		if err == nil {
			told = ""
			err = s.Serve(ctx, l, d.tls)
		}
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			log.Error("the node-local API cannot be served; trying again", "address", d.address.String(), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(doorPause):
		}
	}
}
