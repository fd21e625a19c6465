package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/internal/manifest"
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
	content := manifest.Read("lab", out.Bytes())
	c := newClusterObjects()
	c.problems, c.facts.Whole = content.Errs, true
	places := make(map[diagnosis.Object]string)
	c.facts.Place = func(o diagnosis.Object, _ string) string { return places[o] }
	for _, s := range content.Skipped {
		apifacts.AddSkipped(c.facts, s)
	}
	for _, found := range append(content.Objects, content.References...) {
		meta := found.Object.(metav1.Object)
		places[apifacts.ObjectOf(found.Object)] = meta.GetAnnotations()[apifacts.Place]
		if err := c.add(found.Object); err != nil {
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
