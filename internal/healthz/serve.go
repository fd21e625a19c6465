package healthz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// bindPause is the time between two attempts to bind, as in kube-proxy.
	bindPause = 5 * time.Second
	// stopTimeout is how long requests may go on after the end, until they are cut.
	stopTimeout = 2 * time.Second
)

// ServeOptions says how to bind.
type ServeOptions struct {
	// Name is what is served, in messages. Flag is the setting that chooses the address, for the remedy.
	Name, Flag string
	// HardFail makes an address that cannot be bound an error (kube-proxy's bindAddressHardFail). Otherwise it is tried again
	// every 5 s.
	HardFail bool
	// Logger gets a warning if the address cannot be bound. Default: discard.
	Logger *slog.Logger
}

// ListenAndServe serves h on a TCP address and port until ctx ends, and then returns nil, having let requests that are under
// way come to their end for 2 s. It returns an error only with HardFail.
func ListenAndServe(ctx context.Context, address string, h http.Handler, o ServeOptions) error {
	return listenAndServe(ctx, address, h, o, (&net.ListenConfig{}).Listen)
}

type listenFunc func(ctx context.Context, network, address string) (net.Listener, error)

func listenAndServe(ctx context.Context, address string, h http.Handler, o ServeOptions, listen listenFunc) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for ctx.Err() == nil {
		l, err := listen(ctx, "tcp", address)
		if err == nil {
			err = Serve(ctx, l, h, o.Logger)
		}
		if ctx.Err() != nil {
			break
		}
		err = fmt.Errorf("serve %s on %s: %w; free the port or choose another address with %s", o.Name, address, err, o.Flag)
		if o.HardFail {
			return err
		}
		o.Logger.Warn("cannot serve, trying again", "pause", bindPause, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(bindPause):
		}
	}
	return nil
}

// Serve serves h on l until ctx ends, and then returns nil, having let requests that are under way come to their end for 2 s.
// It closes l. log gets what is wrong with single connections, at level debug; nil discards it.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// There is no limit on the time of an answer: a profile takes as long as it was asked to.
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
