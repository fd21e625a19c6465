package programs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// rootInode is the number of the root of every cgroup2 hierarchy.
const rootInode = 1

// fileidKernfs is the type of file handles of kernfs (include/linux/exportfs.h).
const fileidKernfs = 0xfe

// RootCgroup opens the root of the cgroup2 hierarchy, in which all processes of this kernel are. In a container with
// a cgroup namespace of its own, the mounted cgroup is the container's. The root is then opened by its file handle,
// which needs CAP_DAC_READ_SEARCH.
func RootCgroup() (*os.File, error) {
	mounted, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(mounted)
	if err != nil {
		return nil, fmt.Errorf("the cgroup2 file system: %w", err)
	}
	defer dir.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("the cgroup2 file system at %s: %w", mounted, err)
	}
	if stat.Ino == rootInode {
		return os.Open(mounted)
	}
	id := binary.NativeEndian.AppendUint64(nil, rootInode)
	fd, err := unix.OpenByHandleAt(int(dir.Fd()), unix.NewFileHandle(fileidKernfs, id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%s is a cgroup below the root, and the root cannot be opened (CAP_DAC_READ_SEARCH): %w", mounted, err)
	}
	return os.NewFile(uintptr(fd), "cgroup root"), nil
}

// OpenCgroup opens a cgroup by its path in a cgroup2 file system.
func OpenCgroup(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.Join(fmt.Errorf("%s is no directory of a cgroup2 file system", path), err, f.Close())
	}
	return f, nil
}

// cgroupMount returns where a cgroup2 file system is mounted.
func cgroupMount() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("looking for the cgroup2 file system: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// proc(5): ID, parent, device, root, mount point, options, optional fields, "-", type, ...
		mount, fs, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(fs, "cgroup2 ") {
			return unescape(fields[4]), nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted")
}

// unescape puts back the characters that mountinfo writes as three octal digits.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
