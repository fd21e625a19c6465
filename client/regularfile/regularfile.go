// Package regularfile reads files that other programs may replace at any time: only regular files of a bounded size,
// without waiting.
//
// A named pipe instead of a file would block its reader until a program writes. Some devices never end, and a file may
// be larger than memory.
package regularfile

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Opener is what files are found in: an [os.Root], or the [System].
type Opener interface {
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
}

// NotRegularError reports that something else is where a regular file should be.
type NotRegularError struct {
	// Type is the actual type of the file.
	Type fs.FileMode
}

// Error names the type of the file, and the remedy.
func (e *NotRegularError) Error() string {
	kind := "neither a file nor a directory"
	switch {
	case e.Type&fs.ModeDir != 0:
		kind = "a directory"
	case e.Type&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case e.Type&fs.ModeSocket != 0:
		kind = "a socket"
	case e.Type&fs.ModeDevice != 0:
		kind = "a device"
	}
	return "it is " + kind + ": put a regular file in its place"
}

// TooLargeError reports that a file has more bytes than Most.
type TooLargeError struct{ Most int64 }

// Error names the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("it has more than %d bytes: make it smaller", e.Most)
}

// ReadFile returns the contents of a regular file of at most most bytes. Errors are [fs.PathError]s that wrap a
// [NotRegularError], a [TooLargeError], or an error of the system.
func ReadFile(name string, most int64) ([]byte, error) {
	data, _, err := ReadIn(System{}, name, most)
	return data, err
}

// ReadIn does the same for a file of in. It also returns the file's identity, which [os.SameFile] compares.
func ReadIn(in Opener, name string, most int64) ([]byte, fs.FileInfo, error) {
	info, err := in.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	// Some devices take it for a command that they are opened, so they are not.
	if err := Check(info); err != nil {
		return nil, nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	f, err := in.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil { // another program may have replaced it
		err = Check(info)
	}
	var data []byte
	if err == nil {
		data, err = read(f, info.Size(), most)
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "read", Path: name, Err: cause(err)}
	}
	return data, info, nil
}

// ReadDir lists a directory of in, sorted by name. It does not wait if another kind of file has replaced the directory.
func ReadDir(in Opener, name string) ([]fs.DirEntry, error) {
	f, err := in.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// Check returns a [NotRegularError] if what info describes is no regular file.
func Check(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return &NotRegularError{info.Mode().Type()}
}

// read reads a file of some size, which may grow or be unknown.
func read(f *os.File, size, most int64) ([]byte, error) {
	if size > most {
		return nil, &TooLargeError{most}
	}
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	n, err := b.ReadFrom(io.LimitReader(f, most+1))
	if err == nil && n > most {
		err = &TooLargeError{most}
	}
	return b.Bytes(), err
}

// cause returns an error without the path of the open file.
func cause(err error) error {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err
	}
	return err
}

// System is the file system of the process.
type System struct{}

// Stat implements [Opener].
func (System) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// OpenFile implements [Opener].
func (System) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
