package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
)

// primaryAddresses is the value of --nodeport-addresses that stands for the node's first address of each family.
const primaryAddresses = "primary"

// prefixes is a flag: a comma-separated list of CIDRs.
type prefixes []netip.Prefix

var _ pflag.Value = (*prefixes)(nil)

func (p *prefixes) String() string {
	var s []string
	for _, c := range *p {
		s = append(s, c.String())
	}
	return strings.Join(s, ",")
}

// Set replaces the value.
func (p *prefixes) Set(s string) error {
	var list []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		c, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return fmt.Errorf("%q is not a CIDR such as 10.244.0.0/16", item)
		}
		list = append(list, c.Masked())
	}
	*p = list
	return nil
}

// Type names the value in the help text.
func (p *prefixes) Type() string { return "CIDRs" }

// oncePath is a flag: a path, which would replace the first one without a word if it were given twice.
type oncePath string

var _ pflag.Value = (*oncePath)(nil)

func (p *oncePath) String() string { return string(*p) }

// Set takes the value if there is none.
func (p *oncePath) Set(s string) error {
	if *p != "" && *p != oncePath(s) {
		return fmt.Errorf("%s was given before: put the manifests into one directory, and name that", *p)
	}
	*p = oncePath(s)
	return nil
}

// Type names the value in the help text.
func (p *oncePath) Type() string { return "path" }

// nodePortAddresses is a flag: the keyword primary, or CIDRs.
type nodePortAddresses struct{ config.NodePortAddresses }

var _ pflag.Value = (*nodePortAddresses)(nil)

func (a *nodePortAddresses) String() string {
	if a.Primary {
		return primaryAddresses
	}
	return (*prefixes)(&a.CIDRs).String()
}

// Set replaces the value.
func (a *nodePortAddresses) Set(s string) error {
	if s == primaryAddresses {
		a.NodePortAddresses = config.NodePortAddresses{Primary: true}
		return nil
	}
	a.Primary = false
	if err := (*prefixes)(&a.CIDRs).Set(s); err != nil {
		return fmt.Errorf("%w, nor the word %s", err, primaryAddresses)
	}
	return nil
}

// Type names the value in the help text.
func (a *nodePortAddresses) Type() string { return "CIDRs" }
