// Package httpserver serves HTTP to clients that are not authenticated: health, metrics and health check node ports.
// Each step that a client can delay has a timeout. Connections are limited in total and for each client.
package httpserver

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/switchyard-net/switchyard/internal/connlimit"
)

const (
	// headerTimeout and readTimeout are for the header of a request and for all of it, which no handler here reads.
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout is from the header to the end of the answer. Profiles, which take as long as they are asked to, prolong it.
	writeTimeout = 30 * time.Second
	// idleTimeout is how long a connection may wait for its next request: longer than load balancers pause between checks.
	idleTimeout = time.Minute
	// maxHeader limits the header of a request, in addition to the 4 KiB that net/http adds.
	maxHeader = 8 << 10
	// stopTimeout is how long requests may go on after the end, until they are cut.
	stopTimeout = 2 * time.Second
)

// Options report how to serve.
type Options struct {
	// Name names the service in messages. Flag is the setting that chooses the address, for the remedy. Both are for a
	// [Server].
	Name, Flag string
	// Connections limits the connections. Several servers may share it. Required.
	Connections *connlimit.Pool
	// Logger gets a warning if an address cannot be bound, and faults of single connections at level debug. Required.
	Logger *slog.Logger
}

// New returns a server of h that serves nowhere yet, for callers that stop it in a way of their own. It takes connections from
// listeners of a [connlimit.Pool].
func New(h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := r.Context().Value(connKey{}).(net.Conn)
			connlimit.Used(c)
			h.ServeHTTP(&answer{w, c}, r)
			connlimit.Used(c) // the end of the answer is still to be sent
		}),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(errorLog{logger}, "", 0),
	}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// answer is the writer of a handler. Each flush counts as a use of the connection, so that a connection with a
// streaming answer is not idle.
type answer struct {
	http.ResponseWriter
	conn net.Conn
}

// FlushError is called by [http.ResponseController].
func (a *answer) FlushError() error {
	connlimit.Used(a.conn)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for the other methods of [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// errorLog turns lines of net/http, which name clients, into attributes of one constant message.
type errorLog struct{ logger *slog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	l.logger.Debug("HTTP connection failed", "error", string(bytes.TrimSpace(line)))
	return len(line), nil
}

// Serve serves h on l until ctx ends. It then waits up to 2 s for running requests, and returns nil. It closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, o Options) error {
	srv := New(h, o.Logger)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(o.Connections.Listener(l))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
