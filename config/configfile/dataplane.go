package configfile

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/field"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// nftablesFile is a file of kind NFTablesConfiguration: the section of the dataplane, and beside it what a process that only programs a
// node needs of the whole configuration.
type nftablesFile struct {
	nftables.Config
	DetectLocalMode     config.LocalMode     `json:"detectLocalMode"`
	DetectLocal         v1alpha2.DetectLocal `json:"detectLocal"`
	NodePortAddresses   []string             `json:"nodePortAddresses"`
	SyncPeriod          field.Duration       `json:"syncPeriod"`
	MinSyncPeriod       field.Duration       `json:"minSyncPeriod"`
	HealthzBindAddress  netip.AddrPort       `json:"healthzBindAddress"`
	MetricsBindAddress  netip.AddrPort       `json:"metricsBindAddress"`
	BindAddressHardFail bool                 `json:"bindAddressHardFail"`
	EnableProfiling     bool                 `json:"enableProfiling"`
	Linux               v1alpha2.Linux       `json:"linux"`
}

// LoadNFTables reads the file of a process that programs a node by nftables: of kind NFTablesConfiguration, whose other settings have
// their defaults and whose mode is nftables, or any file that [Load] reads.
func LoadNFTables(data []byte, o Options) (*config.Config, []config.Note, error) {
	if o.Name == "" {
		o.Name = "configuration"
	}
	doc, errs := manifest.Single(o.Name, data)
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	if doc.Kind != nftables.DefaultConfig().Kind() {
		return Load(data, o)
	}
	if doc.APIVersion != SectionAPIVersion {
		return nil, nil, wrongKind(doc, doc.Kind, SectionAPIVersion)
	}
	whole := v1alpha2.Default()
	file := nftablesFile{
		whole.NFTables, whole.DetectLocalMode, whole.DetectLocal, whole.NodePortAddresses, whole.SyncPeriod, whole.MinSyncPeriod,
		whole.HealthzBindAddress, whole.MetricsBindAddress, whole.BindAddressHardFail, whole.EnableProfiling, whole.Linux,
	}
	var r report
	r.decoded(doc, doc.Into(&file))
	whole.Mode, whole.NFTables = config.ModeNFTables, file.Config
	whole.DetectLocalMode, whole.DetectLocal, whole.NodePortAddresses = file.DetectLocalMode, file.DetectLocal, file.NodePortAddresses
	whole.SyncPeriod, whole.MinSyncPeriod, whole.Linux = file.SyncPeriod, file.MinSyncPeriod, file.Linux
	whole.HealthzBindAddress, whole.MetricsBindAddress = file.HealthzBindAddress, file.MetricsBindAddress
	whole.BindAddressHardFail, whole.EnableProfiling = file.BindAddressHardFail, file.EnableProfiling
	c, faults := whole.Convert()
	faults = append(faults, c.Validate(o.Platform)...)
	for i, f := range faults {
		faults[i] = &field.Error{Path: strings.TrimPrefix(f.Path, "nftables."), Problem: f.Problem}
	}
	r.add(doc, faults...)
	if len(r.errs) > 0 {
		return nil, nil, r.err([]*manifest.Document{doc})
	}
	return c, nil, nil
}
