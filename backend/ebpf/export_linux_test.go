package ebpf

import "github.com/cilium/ebpf"

// HookProgram returns a program of the hooks, which must be on.
func HookProgram(b *Backend, name string) *ebpf.Program { return b.hooks.programs.Programs[name] }
