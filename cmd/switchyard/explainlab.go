package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
)

// labNode is the node under test of a lab.
const labNode = "node-a"

// labPods are the ranges of a lab's pods.
var labPods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}

// labObjects returns the objects that the lab makes of manifests. Switchyard-lab makes them: this program has no part of the lab.
func (o *explainOptions) labObjects(cmd *cobra.Command) (*clusterObjects, error) {
	path, err := labProgram("explain --lab")
	if err != nil {
		return nil, err
	}
	program := exec.CommandContext(cmd.Context(), path, append([]string{cli.LabObjects, "--"}, o.lab...)...)
	var out bytes.Buffer
	program.Stdin, program.Stdout, program.Stderr = cmd.InOrStdin(), &out, cmd.ErrOrStderr()
	if err := program.Run(); err != nil {
		if _, ended := err.(*exec.ExitError); ended {
			return nil, fmt.Errorf("--lab: the manifests cannot be read")
		}
		return nil, labError(err, path)
	}
	c := newClusterObjects()
	var objects []runtime.Object
	c.facts, objects, c.problems = apifacts.FromLab(out.Bytes())
	for _, o := range objects {
		if err := c.add(o); err != nil {
			c.problems = append(c.problems, err)
		}
	}
	return c, nil
}

// setLab gives a configuration what the proxy of a lab has.
func setLab(c *config.Config) {
	if c.DetectLocalMode != config.LocalModeClusterCIDR || len(c.DetectLocal.ClusterCIDRs) == 0 {
		c.DetectLocalMode, c.DetectLocal.ClusterCIDRs = config.LocalModeClusterCIDR, labPods
	}
}
