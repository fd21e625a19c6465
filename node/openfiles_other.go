//go:build !linux && !windows

package node

// openFilesLimit is how many files this process may have open, as far as is known here.
func openFilesLimit() uint64 { return fewFiles }
