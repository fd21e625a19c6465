package nftables

import (
	"errors"
	"fmt"
	"os"
)

// routeLocalnet is the sysctl without which the kernel drops packets between loopback and other addresses, and with them
// connections from 127.0.0.1 that were translated to an endpoint.
type routeLocalnet struct {
	file *os.File
	err  error // why there is no file
	done bool  // set, or tried and reported
}

// openRouteLocalnet opens the sysctl of the calling thread's network namespace. Failures show when it is needed.
func openRouteLocalnet() *routeLocalnet {
	f, err := os.OpenFile("/proc/sys/net/ipv4/conf/all/route_localnet", os.O_WRONLY, 0)
	return &routeLocalnet{file: f, err: err}
}

// enable sets the sysctl, the first time that it is called.
func (r *routeLocalnet) enable() error {
	if r.done {
		return nil
	}
	r.done = true
	return r.write("1")
}

func (r *routeLocalnet) disable() error { return r.write("0") }

func (r *routeLocalnet) write(value string) error {
	if r.err != nil {
		return fmt.Errorf("setting route_localnet: %w", r.err)
	}
	if _, err := r.file.WriteAt([]byte(value), 0); err != nil {
		return fmt.Errorf("setting route_localnet: %w", err)
	}
	return nil
}

func (r *routeLocalnet) close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
