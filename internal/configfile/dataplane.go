package configfile

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// KindNFTables, KindEBPF, KindIPVS and KindUserspace are the file kinds of a process that only programs nftables.
// KindNFTables programs it alone, KindEBPF with socket hooks, KindIPVS with IPVS, and KindUserspace with a relay.
// KindIPTables and KindWinkernel are the file kinds of a process that only programs iptables or Windows' HNS.
const (
	KindNFTables  = "NFTablesConfiguration"
	KindEBPF      = "EBPFConfiguration"
	KindIPVS      = "IPVSConfiguration"
	KindIPTables  = "IPTablesConfiguration"
	KindUserspace = "UserspaceConfiguration"
	KindWinkernel = "WinkernelConfiguration"
)

// SectionAPIVersion is the version of those files.
const SectionAPIVersion = "switchyard.net/v1alpha1"

// dataplaneFile is a kind of file for a process that only programs a node by one dataplane. It stands for a whole configuration, in
// which all that it does not have has its default.
type dataplaneFile struct {
	kind    string
	mode    config.Mode
	section string // of the whole configuration
	// part returns a pointer to the fields that the file has, with their values in c, and what puts them back.
	part func(c *v1alpha2.KubeProxyConfiguration) (fields any, put func())
}

// dataplaneFiles lists the kinds.
var dataplaneFiles = []dataplaneFile{
	{KindNFTables, config.ModeNFTables, "nftables", nftablesPart},
	{KindIPTables, config.ModeIPTables, "iptables", iptablesPart},
	{KindIPVS, config.ModeIPVS, "ipvs", ipvsPart},
	{KindEBPF, config.ModeEBPF, "ebpf", ebpfPart},
	{KindUserspace, config.ModeUserspace, "userspace", userspacePart},
	{KindWinkernel, config.ModeKernelspace, "winkernel", winkernelPart},
}

// DataplaneKinds are the kinds of files of single dataplanes; see [Options].
func DataplaneKinds() []string {
	var kinds []string
	for _, f := range dataplaneFiles {
		kinds = append(kinds, f.kind)
	}
	return kinds
}

// dataplaneFileOf returns the kind of file that a document is, nil if it is another one.
func dataplaneFileOf(doc *manifest.Document) *dataplaneFile {
	i := slices.IndexFunc(dataplaneFiles, func(f dataplaneFile) bool { return f.kind == doc.Kind })
	if i < 0 {
		return nil
	}
	return &dataplaneFiles[i]
}

// programming has the settings of a process that only programs a node, without the section of its dataplane.
type programming struct {
	DetectLocalMode     config.LocalMode     `json:"detectLocalMode"`
	DetectLocal         v1alpha2.DetectLocal `json:"detectLocal"`
	NodePortAddresses   []string             `json:"nodePortAddresses"`
	SyncPeriod          config.Duration      `json:"syncPeriod"`
	MinSyncPeriod       config.Duration      `json:"minSyncPeriod"`
	HealthzBindAddress  netip.AddrPort       `json:"healthzBindAddress"`
	MetricsBindAddress  netip.AddrPort       `json:"metricsBindAddress"`
	BindAddressHardFail bool                 `json:"bindAddressHardFail"`
	ConfigHardFail      bool                 `json:"configHardFail"`
	EnableProfiling     bool                 `json:"enableProfiling"`
	Linux               v1alpha2.Linux       `json:"linux"`
}

func programmingOf(c *v1alpha2.KubeProxyConfiguration) programming {
	return programming{
		c.DetectLocalMode, c.DetectLocal, c.NodePortAddresses, c.SyncPeriod, c.MinSyncPeriod,
		c.HealthzBindAddress, c.MetricsBindAddress, c.BindAddressHardFail, c.ConfigHardFail, c.EnableProfiling, c.Linux,
	}
}

func (p *programming) put(c *v1alpha2.KubeProxyConfiguration) {
	c.DetectLocalMode, c.DetectLocal, c.NodePortAddresses, c.SyncPeriod, c.MinSyncPeriod =
		p.DetectLocalMode, p.DetectLocal, p.NodePortAddresses, p.SyncPeriod, p.MinSyncPeriod
	c.HealthzBindAddress, c.MetricsBindAddress, c.BindAddressHardFail, c.ConfigHardFail, c.EnableProfiling, c.Linux =
		p.HealthzBindAddress, p.MetricsBindAddress, p.BindAddressHardFail, p.ConfigHardFail, p.EnableProfiling, p.Linux
}

// nftablesFile has the section of the nftables dataplane and the common settings.
type nftablesFile struct {
	config.NFTables
	programming
}

func nftablesPart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &nftablesFile{c.NFTables, programmingOf(c)}
	return f, func() {
		c.NFTables = f.NFTables
		f.put(c)
	}
}

// iptablesFile has the section of the iptables dataplane and the common settings.
type iptablesFile struct {
	config.IPTables
	programming
}

func iptablesPart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &iptablesFile{c.IPTables, programmingOf(c)}
	return f, func() {
		c.IPTables = f.IPTables
		f.put(c)
	}
}

// ebpfFile has the section of the hooks, the section of nftables, which is below the hooks, and the common settings.
type ebpfFile struct {
	config.EBPF
	NFTables config.NFTables `json:"nftables"`
	programming
}

func ebpfPart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &ebpfFile{c.EBPF, c.NFTables, programmingOf(c)}
	return f, func() {
		c.EBPF, c.NFTables = f.EBPF, f.NFTables
		f.put(c)
	}
}

// ipvsFile has the section of IPVS, the section of nftables, which is below IPVS, and the common settings.
type ipvsFile struct {
	config.IPVS
	NFTables config.NFTables `json:"nftables"`
	programming
}

func ipvsPart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &ipvsFile{c.IPVS, c.NFTables, programmingOf(c)}
	return f, func() {
		c.IPVS, c.NFTables = f.IPVS, f.NFTables
		f.put(c)
	}
}

// userspaceFile has the section of the relay, the section of nftables, which is below the relay, and the common
// settings.
type userspaceFile struct {
	config.Userspace
	NFTables config.NFTables `json:"nftables"`
	programming
}

func userspacePart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &userspaceFile{c.Userspace, c.NFTables, programmingOf(c)}
	return f, func() {
		c.Userspace, c.NFTables = f.Userspace, f.NFTables
		f.put(c)
	}
}

// winkernelFile has the section of Windows' HNS and the common settings.
type winkernelFile struct {
	config.Winkernel
	programming
}

func winkernelPart(c *v1alpha2.KubeProxyConfiguration) (any, func()) {
	f := &winkernelFile{c.Winkernel, programmingOf(c)}
	return f, func() {
		c.Winkernel = f.Winkernel
		f.put(c)
	}
}

// path returns the path in the file of a field of the whole configuration.
func (f *dataplaneFile) path(path string) string { return strings.TrimPrefix(path, f.section+".") }

// loadDataplane reads the file of a single dataplane.
func (l *loaded) loadDataplane() {
	file := v1alpha2.Default()
	file.Mode = l.dataplane.mode
	unset, _ := file.Convert()
	fields, put := l.dataplane.part(file)
	l.decoded(l.shared, l.shared.Into(fields))
	put()
	c, faults := file.Convert()
	for _, f := range faults {
		l.add(l.shared, &config.FieldError{Path: l.dataplane.path(f.Path), Problem: f.Problem})
	}
	l.config, l.unset = c, unset
}

// root returns the file with the settings of c that its kind supports, and notes about the others.
func (f *dataplaneFile) root(c *config.Config) (*yaml.Node, []config.Note, error) {
	kept := v1alpha2.Default()
	kept.Mode = f.mode
	fields, _ := f.part(v1alpha2.From(c))
	into, put := f.part(kept)
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(fields).Elem())
	put()
	same, _ := kept.Convert()
	var lost []config.Note
	live, restart, none := config.Diff(same, c)
	for _, path := range slices.Concat(live, restart, none) {
		lost = append(lost, config.Note{Path: path, Text: fmt.Sprintf("is lost: %s has no such field, and %s is what it was", f.kind, c.Text(path))})
	}
	root, err := nodes(struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}{SectionAPIVersion, f.kind})
	if err != nil {
		return nil, nil, err
	}
	rest, err := nodes(fields)
	if err != nil {
		return nil, nil, err
	}
	root.Content = append(root.Content, rest.Content...)
	return root, lost, nil
}
