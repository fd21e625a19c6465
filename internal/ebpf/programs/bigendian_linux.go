//go:build !(386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64)

package programs

import (
	"errors"

	"github.com/cilium/ebpf"
)

func loadEnds() (*ebpf.CollectionSpec, error) { return loadHooks() }

func loadHooks() (*ebpf.CollectionSpec, error) {
	return nil, errors.New("they are compiled for little-endian machines only")
}
