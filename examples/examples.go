// Package examples holds applications to try Switchyard with, as ordinary manifests.
package examples

import "embed"

// Shop is a web shop, in the directory shop.
//
//go:embed shop/*.yaml
var Shop embed.FS
