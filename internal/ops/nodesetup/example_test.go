package nodesetup_test

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/switchyard-net/switchyard/internal/ops/nodesetup"
)

// Write kube-proxy's defaults when a program starts. A value that cannot be written does not end
// the program.
func ExampleApply() {
	_ = func(log *slog.Logger) {
		for _, warning := range nodesetup.Apply(nodesetup.Options{
			Conntrack: nodesetup.Conntrack{
				MaxPerCore: 32 * 1024, Min: 128 * 1024,
				TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
			},
			OOMScoreAdj: new(-999),
			Logger:      log,
		}) {
			log.Warn("node setup", "error", warning)
		}
	}
}

func ExampleConntrack_Limit() {
	defaults := nodesetup.Conntrack{MaxPerCore: 32 * 1024, Min: 128 * 1024}
	fmt.Println(defaults.Limit(2), defaults.Limit(8))
	// Output: 131072 262144
}
