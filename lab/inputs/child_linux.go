package inputs

import (
	"fmt"
	"os"
	"syscall"
)

// isolations are the ways to start a process that has no network, the preferred one first. In a user namespace, root
// loses the right to read files of other users.
func isolations() []*syscall.SysProcAttr {
	return []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL},
		{
			Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		},
	}
}

// resident is how many bytes of memory a process has, 0 if that is not known.
func resident(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, pages int
	_, _ = fmt.Sscan(string(text), &size, &pages) // zeros
	return pages * os.Getpagesize()
}
