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
	on   bool  // it was seen to be set
	// reported is set if it could not be set, since when nothing has changed about that.
	reported bool
}

// openRouteLocalnet opens the sysctl of the calling thread's network namespace. Failures show when it is needed.
func openRouteLocalnet() *routeLocalnet {
	f, err := os.OpenFile("/proc/sys/net/ipv4/conf/all/route_localnet", os.O_RDWR, 0)
	return &routeLocalnet{file: f, err: err}
}

// enable sets the sysctl if it is not set, and reports whether somebody had reset it since the last time. A failure is returned
// once, and again only after the sysctl was set meanwhile.
func (r *routeLocalnet) enable() (again bool, err error) {
	var value [1]byte
	if r.err == nil {
		if _, err := r.file.ReadAt(value[:], 0); err == nil && value[0] == '1' {
			r.on, r.reported = true, false
			return false, nil
		}
	}
	err = r.write("1")
	if err != nil && r.reported {
		return false, nil
	}
	again = r.on && err == nil
	r.on, r.reported = err == nil, err != nil
	return again, err
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
