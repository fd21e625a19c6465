package node

// openFilesLimit is how many files this process may have open: Windows has a limit of handles that no server reaches.
func openFilesLimit() uint64 { return 1 << 20 }
