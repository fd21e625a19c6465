package config

import (
	"net/netip"
)

// The keywords among the ranges of nodePortAddresses.
const (
	nodePortPrimary   = "primary"
	nodePortLocalhost = "localhost"
	nodePortAll       = "all"
)

// ParseNodePortAddresses reads a list of ranges and keywords from a file. It returns the valid items, and one fault for
// each item that is neither, or repeats a keyword. path is the path of the list.
func ParseNodePortAddresses(path string, items []string) (NodePortAddresses, []*FieldError) {
	var a NodePortAddresses
	var errs FieldErrors
	keywords := map[string]*bool{nodePortPrimary: &a.Primary, nodePortLocalhost: &a.Localhost, nodePortAll: &a.All}
	for i, item := range items {
		at := IndexPath(path, i)
		if keyword := keywords[item]; keyword != nil {
			if *keyword {
				errs.Add(at, "is the keyword %s for the second time: take one out", item)
			}
			*keyword = true
		} else if p, err := netip.ParsePrefix(item); err == nil {
			a.CIDRs = append(a.CIDRs, p)
		} else {
			errs.Add(at, "must be a CIDR such as 192.0.2.0/24 or one of the keywords primary, localhost and all, got %q", item)
		}
	}
	return a, errs
}

// Strings returns the list as files have it: the keywords, then the ranges.
func (a NodePortAddresses) Strings() []string {
	list := []string{}
	for _, k := range []struct {
		word string
		set  bool
	}{{nodePortPrimary, a.Primary}, {nodePortLocalhost, a.Localhost}, {nodePortAll, a.All}} {
		if k.set {
			list = append(list, k.word)
		}
	}
	for _, p := range a.CIDRs {
		list = append(list, p.String())
	}
	return list
}
