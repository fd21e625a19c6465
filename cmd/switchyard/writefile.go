package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// writeFile writes text to path. Readers of a regular file see the old or the new text, never a part. A temporary file
// replaces it and keeps its owner and permissions. A new file has permissions 0644. A symbolic link stays, and its
// target is written. A device, a FIFO, and the file of standard output or standard error are written in place, because
// other programs share them.
func writeFile(path string, text []byte) error {
	if err := writeTo(path, text); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func writeTo(path string, text []byte) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return os.WriteFile(path, text, 0o644) // creates the target of a dangling link
		}
		return replaceFile(path, text, nil)
	case err != nil:
		return err
	}
	if stream := standardStream(info); stream != nil {
		_, err := stream.Write(text)
		return err
	}
	if !info.Mode().IsRegular() {
		return writeInPlace(path, text)
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	return replaceFile(target, text, info)
}

// standardStream returns the stream of this process that is open on the file info describes, or nil. A path such as /dev/stdout names it.
func standardStream(info fs.FileInfo) *os.File {
	streams := []*os.File{os.Stdout, os.Stderr}
	i := slices.IndexFunc(streams, func(f *os.File) bool {
		open, err := f.Stat()
		return err == nil && os.SameFile(open, info)
	})
	if i < 0 {
		return nil
	}
	return streams[i]
}

func writeInPlace(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// replaceFile renames a new file to path. The new file has the owner and permissions of old, which may be nil.
func replaceFile(path string, text []byte, old fs.FileInfo) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if old != nil {
		mode = old.Mode().Perm()
		err = keepOwner(f, old) // before the permissions: a change of owner clears some of them
	}
	if err == nil {
		_, err = f.Write(text)
	}
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
