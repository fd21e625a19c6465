package httpserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// bindPause is the time between two attempts to bind, as in kube-proxy.
const bindPause = 5 * time.Second

// Server serves a handler on a TCP address that may change while it runs. Its methods may be called concurrently.
type Server struct {
	o       Options
	handler http.Handler
	listen  listenFunc
	changed chan struct{} // has a value when the address has changed
	open    sync.WaitGroup
	bound   bound // by Bind

	mu       sync.Mutex // guards all below
	address  string
	hardFail bool
}

type listenFunc func(ctx context.Context, network, address string) (net.Listener, error)

// NewServer returns a server that serves h nowhere yet.
func NewServer(h http.Handler, o Options) *Server {
	return &Server{o: o, handler: h, listen: (&net.ListenConfig{}).Listen, changed: make(chan struct{}, 1)}
}

// SetAddress sets the address to serve on: an IP address and port, or none if it is empty. hardFail makes an address
// that cannot be bound an error (kube-proxy's bindAddressHardFail); otherwise it is retried every 5 s.
//
// Serving continues during the change: the new address is bound before the old one is closed. If both have the same
// port, they may exclude each other, and the old one is closed first. While the new one cannot be bound, the server
// serves on the old one.
func (s *Server) SetAddress(address string, hardFail bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == address && s.hardFail == hardFail {
		return
	}
	s.address, s.hardFail = address, hardFail
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wanted returns the arguments of the last SetAddress.
func (s *Server) wanted() (address string, hardFail bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.changed:
	default:
	}
	return s.address, s.hardFail
}

// bound is a listener, and its address.
type bound struct {
	net.Listener
	address string
}

// Bind binds the address of the last SetAddress before Run, so that the process can end early if it cannot be bound. It
// then returns an error, if that SetAddress set hardFail. It is called before Run, at most once; after an error, Run is
// not called.
func (s *Server) Bind(ctx context.Context) error {
	address, hardFail := s.wanted()
	if address == "" {
		return nil
	}
	l, err := s.listen(ctx, "tcp", address)
	switch {
	case err == nil:
		s.bound = bound{l, address}
	case hardFail:
		return s.failed(address, err)
	}
	return nil
}

// Close closes the address that Bind has bound, if Run is not called.
func (s *Server) Close() error {
	if s.bound.Listener == nil {
		return nil
	}
	return s.bound.Close()
}

// failed names the address that cannot be served on, and the remedy.
func (s *Server) failed(address string, err error) error {
	return fmt.Errorf("serve %s on %s: %w; free the port or choose another address with %s", s.o.Name, address, err, s.o.Flag)
}

// Run serves until ctx ends, and then returns nil, having let requests that are under way come to their end for 2 s. It returns an
// error only if the last SetAddress set hardFail. It is called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer s.open.Wait()
	defer end()
	var now *serving
	if s.bound.Listener != nil {
		now = s.serve(ctx, s.bound.Listener, s.bound.address)
	}
	for ctx.Err() == nil {
		address, hardFail := s.wanted()
		var err error
		if address != now.at() {
			now, err = s.move(ctx, now, address)
		}
		if err == nil {
			select {
			case <-ctx.Done():
			case <-s.changed:
			case err = <-now.broken():
				now = nil
			}
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		err = s.failed(address, err)
		if hardFail {
			return err
		}
		s.o.Logger.Warn("cannot serve, will retry", "retryAfter", bindPause, "meanwhile", cmp.Or(now.at(), "nowhere"), "error", err)
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-time.After(bindPause):
		}
	}
	return nil
}

// move serves on address, if it is not empty, and no longer where it did. If that fails, it goes on as before.
func (s *Server) move(ctx context.Context, from *serving, address string) (*serving, error) {
	if address == "" {
		from.stop()
		return nil, nil
	}
	first := from != nil && port(from.address) == port(address)
	if first {
		from.stop()
	}
	l, err := s.listen(ctx, "tcp", address)
	if err == nil {
		from.stop()
		return s.serve(ctx, l, address), nil
	}
	if !first {
		return from, err
	}
	if l, gone := s.listen(ctx, "tcp", from.address); gone == nil {
		return s.serve(ctx, l, from.address), err
	}
	return nil, err
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// serving is a listener that is served. A nil one is none.
type serving struct {
	address  string
	listener net.Listener
	cancel   context.CancelFunc
	ended    chan error // gets why it ended, unless it was stopped
}

func (s *Server) serve(ctx context.Context, l net.Listener, address string) *serving {
	ctx, cancel := context.WithCancel(ctx)
	v := &serving{address, l, cancel, make(chan error, 1)}
	s.open.Go(func() {
		if err := Serve(ctx, l, s.handler, s.o); ctx.Err() == nil {
			v.ended <- err
		}
	})
	return v
}

func (v *serving) at() string {
	if v == nil {
		return ""
	}
	return v.address
}

func (v *serving) broken() <-chan error {
	if v == nil {
		return nil
	}
	return v.ended
}

// stop takes no further connections; requests that are under way come to their end.
func (v *serving) stop() {
	if v != nil {
		v.cancel()
		_ = v.listener.Close() // at once: the port may be wanted
	}
}
