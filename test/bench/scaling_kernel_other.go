//go:build !linux

package bench

// kernelScalings has nothing: what is measured there exists on Linux only.
func kernelScalings() []scaling { return nil }
