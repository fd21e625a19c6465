package node

import "golang.org/x/sys/unix"

// openFilesLimit is how many files this process may have open. It asks by prlimit64, as Go's runtime does: the seccomp profile and the
// units allow that call, and none of the older getrlimit.
func openFilesLimit() uint64 {
	var l unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l) != nil {
		return fewFiles
	}
	return l.Cur
}
