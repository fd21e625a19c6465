//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// dataplane is that of the proxy under test.
type dataplane struct {
	mode string
	// fields are those of a configuration file that has the mode.
	fields map[string]string
	// file is a configuration file with these fields, empty if none is needed.
	file string
	// without is set for processes that start in mode nftables all the same.
	without bool
	close   func() error
}

// newDataplane returns the dataplane of a mode, nftables or ebpf, for the node under test.
func newDataplane(mode, dir string, l *topology.Lab) (*dataplane, error) {
	d := &dataplane{mode: mode, fields: map[string]string{"mode": mode}, close: func() error { return nil }}
	switch mode {
	case "nftables":
		return d, nil
	case "ebpf":
	default:
		return nil, fmt.Errorf("dataplane %s: use nftables or ebpf", mode)
	}
	namespaces, err := sockethooks.Namespaces(sockethooks.Of(l))
	if err != nil {
		return nil, err
	}
	path, unpin, err := sockethooks.Pin(namespaces, dir)
	if err != nil {
		return nil, errors.Join(err, namespaces.Close())
	}
	d.close = func() error { return errors.Join(unpin(), namespaces.Close()) }
	d.fields["ebpf"] = "{namespaceMap: " + path + "}"
	d.file = filepath.Join(dir, "dataplane.yaml")
	fields := map[string]string{"linux": noNodeSetup}
	maps.Copy(fields, d.fields)
	if err := os.WriteFile(d.file, configOf(fields), 0o600); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// args are the arguments of a process that has no configuration file of its own.
func (d *dataplane) args() []string {
	if d.file == "" || d.without {
		return nil
	}
	return []string{"--config", d.file}
}
