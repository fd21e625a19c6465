package debian

import (
	"context"
	_ "embed"
	"path"
	"slices"
	"time"
)

// iptables is what both variants of iptables take, of Debian 12.
//
//go:embed iptables.txt
var iptables string

// Mirror serves Debian's packages, and Snapshot serves packages that Mirror no longer has.
const (
	Mirror   = "http://deb.debian.org/debian"
	Snapshot = "http://snapshot.debian.org/archive/debian/20261123T000000Z"
)

// wantedOfIPTables are patterns of paths: the programs of both variants, their extensions, the libraries that these need, and the licenses.
var wantedOfIPTables = []string{
	"usr/sbin/xtables-legacy-multi", "usr/sbin/xtables-nft-multi",
	"usr/sbin/ip*tables-legacy", "usr/sbin/ip*tables-legacy-*", "usr/sbin/ip*tables-nft", "usr/sbin/ip*tables-nft-*",
	"usr/lib/*/xtables/*.so",
	"usr/lib/*/libxtables.so*", "usr/lib/*/libip[46]tc.so*", "usr/lib/*/libmnl.so*", "usr/lib/*/libnftnl.so*", "usr/lib/*/libnfnetlink.so*",
	"usr/lib/*/libnetfilter_conntrack.so*", "lib/*/libmnl.so*",
	"lib/*/libc.so.6", "lib/*/libm.so.6", "lib/*/ld-linux-*", "lib/ld-linux-*", "lib64/ld-linux-*",
	"usr/share/doc/*/copyright",
}

// IPTablesPackages returns the packages that [IPTables] takes, for all architectures.
func IPTablesPackages() ([]Package, error) { return ParseList(iptables) }

// IPTables returns a layer with both variants of iptables for an architecture. Packages are kept in the directory cache.
func IPTables(ctx context.Context, arch, cache string, created time.Time) ([]byte, error) {
	list, err := IPTablesPackages()
	if err != nil {
		return nil, err
	}
	var debs [][]byte
	for _, p := range list {
		if p.Arch != arch {
			continue
		}
		deb, err := Fetch(ctx, p, cache, Mirror, Snapshot)
		if err != nil {
			return nil, err
		}
		debs = append(debs, deb)
	}
	return Layer(debs, isWantedOfIPTables, created)
}

func isWantedOfIPTables(name string) bool {
	return slices.ContainsFunc(wantedOfIPTables, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}
