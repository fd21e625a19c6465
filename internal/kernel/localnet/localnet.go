// Package localnet switches on the sysctl route_localnet. Without it the kernel drops packets between loopback and
// other addresses, and with them connections from 127.0.0.1 that were translated to an endpoint. A dataplane that
// serves NodePorts on loopback addresses needs it, and keeps packets of other hosts away from them, as the kernel
// does no longer.
package localnet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// Sysctl is the sysctl of one network namespace.
type Sysctl struct {
	file *os.File
	err  error // why there is no file
	on   bool  // it was seen to be set
	// reported is set if it could not be set, since when nothing has changed about that.
	reported bool
}

// Open opens the sysctl of the calling thread's network namespace. Failures show when it is needed.
func Open() *Sysctl {
	f, err := os.OpenFile("/proc/sys/net/ipv4/conf/all/route_localnet", os.O_RDWR, 0)
	return &Sysctl{file: f, err: err}
}

// Keep sets the sysctl if it is not set. It logs a failure once, and again only after a success in between. It logs
// each time that another program has reset the sysctl.
func (s *Sysctl) Keep(log *slog.Logger) {
	again, err := s.enable()
	if err != nil {
		log.Warn("NodePorts do not work on loopback addresses", "error", err,
			"remedy", "set net.ipv4.conf.all.route_localnet to 1, or leave loopback ranges out of the node port addresses")
	}
	if again {
		log.Warn("somebody has switched off net.ipv4.conf.all.route_localnet; it is on again, for NodePorts on loopback addresses")
	}
}

// enable sets the sysctl if it is not set, and reports whether somebody had reset it since the last time. A failure
// is returned once, and again only after a success in between.
func (s *Sysctl) enable() (again bool, err error) {
	var value [1]byte
	if s.err == nil {
		if _, err := s.file.ReadAt(value[:], 0); err == nil && value[0] == '1' {
			s.on, s.reported = true, false
			return false, nil
		}
	}
	err = s.write("1")
	if err != nil && s.reported {
		return false, nil
	}
	again = s.on && err == nil
	s.on, s.reported = err == nil, err != nil
	return again, err
}

// Disable resets the sysctl.
func (s *Sysctl) Disable() error {
	s.on = false
	return s.write("0")
}

func (s *Sysctl) write(value string) error {
	if s.err != nil {
		return fmt.Errorf("setting route_localnet: %w", s.err)
	}
	if _, err := s.file.WriteAt([]byte(value), 0); err != nil {
		return fmt.Errorf("setting route_localnet: %w", err)
	}
	return nil
}

// Close releases the file. It may be called twice.
func (s *Sysctl) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
