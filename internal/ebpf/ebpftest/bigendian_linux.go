//go:build !(386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64)

package ebpftest

import (
	"errors"

	"github.com/cilium/ebpf"
)

func loadLookups() (*ebpf.CollectionSpec, error) {
	return nil, errors.New("they are compiled for little-endian machines only")
}
