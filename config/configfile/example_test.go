package configfile_test

import (
	"fmt"

	"github.com/switchyard-net/switchyard/config/configfile"
	"github.com/switchyard-net/switchyard/field"
)

// tunnelConfig is the configuration of somebody else's dataplane.
type tunnelConfig struct {
	Device string `json:"device"`
	MTU    int    `json:"mtu"`
}

func (tunnelConfig) Kind() string { return "TunnelConfiguration" }

func (c tunnelConfig) Validate(path string) []*field.Error {
	var errs field.Errors
	if c.MTU < 1280 {
		errs.Add(path+"mtu", "must be at least 1280, got %d", c.MTU)
	}
	return errs
}

// A dataplane reads its own file, and reports every fault with its line.
func ExampleLoadSection() {
	text := []byte("apiVersion: switchyard.net/v1alpha1\nkind: TunnelConfiguration\nmtu: 9000\n")
	c, err := configfile.LoadSection("tunnel.yaml", text, tunnelConfig{Device: "tun0", MTU: 1500})
	fmt.Println(c.Device, c.MTU, err)

	text = []byte("apiVersion: switchyard.net/v1alpha1\nkind: TunnelConfiguration\nmtu: 90\ncolour: red\n")
	_, err = configfile.LoadSection("tunnel.yaml", text, tunnelConfig{})
	fmt.Println(err)
	// Output:
	// tun0 9000 <nil>
	// tunnel.yaml:3:6: mtu: must be at least 1280, got 90
	// tunnel.yaml:4:1: colour: there is no such field
}
