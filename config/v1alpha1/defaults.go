package v1alpha1

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/config"
)

// Default returns a file with all defaults.
func Default() *KubeProxyConfiguration {
	c := &KubeProxyConfiguration{APIVersion: APIVersion, Kind: Kind}
	c.SetDefaults()
	return c
}

// SetDefaults gives all fields that are not set their defaults.
func (c *KubeProxyConfiguration) SetDefaults() {
	orElse(&c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if bind, err := netip.ParseAddr(c.BindAddress); err == nil && !bind.Unmap().Is4() {
		healthz, metrics = "::", "::1"
	}
	orElse(&c.HealthzBindAddress, healthz)
	orElse(&c.MetricsBindAddress, metrics)
	c.HealthzBindAddress = WithPort(c.HealthzBindAddress, config.HealthzPort)
	c.MetricsBindAddress = WithPort(c.MetricsBindAddress, config.MetricsPort)

	orElse(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orElse(&c.ClientConnection.QPS, 5)
	orElse(&c.ClientConnection.Burst, 10)
	orElse(&c.Logging.Format, "text")
	orElse(&c.Logging.FlushFrequency.Duration, 5*time.Second)
	orElse(&c.ConfigSyncPeriod.Duration, 15*time.Minute)

	orElse(&c.IPTables.MasqueradeBit, new(int32(14)))
	orElse(&c.IPTables.LocalhostNodePorts, new(true))
	orElse(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	orElse(&c.IPTables.MinSyncPeriod.Duration, time.Second)
	orElse(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	orElse(&c.NFTables.MasqueradeBit, new(int32(14)))
	orElse(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	orElse(&c.NFTables.MinSyncPeriod.Duration, time.Second)
	orElse(&c.Winkernel.RootHnsEndpointName, "cbr0")

	orElse(&c.OOMScoreAdj, new(int32(-999)))
	orElse(&c.Conntrack.MaxPerCore, new(int32(32*1024)))
	orElse(&c.Conntrack.Min, new(int32(128*1024)))
	orElse(&c.Conntrack.TCPEstablishedTimeout, &config.Duration{Duration: 24 * time.Hour})
	orElse(&c.Conntrack.TCPCloseWaitTimeout, &config.Duration{Duration: time.Hour})
}

// orElse sets a zero value.
func orElse[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// WithPort returns addr with a port if it is an IP address without one.
func WithPort(addr string, port int) string {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return addr
	}
	if ip.Is6() {
		return "[" + ip.String() + "]:" + strconv.Itoa(port)
	}
	return ip.String() + ":" + strconv.Itoa(port)
}
