//go:build linux

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Backup copies the data of etcd into a directory that does not exist yet. etcd is away during the copy.
func (c *ControlPlane) Backup(to string) error {
	c.end("etcd")
	if err := os.CopyFS(to, os.DirFS(c.data())); err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	return c.startAgain("etcd", etcdFlags(c.dir))
}

// Restore replaces the data of etcd by a copy from Backup, and starts etcd and the API server again with the options of Start. It returns
// when the API server answers.
func (c *ControlPlane) Restore(ctx context.Context, from string, o Options) error {
	c.end("kube-apiserver")
	c.end("etcd")
	err := errors.Join(os.RemoveAll(c.data()), os.CopyFS(c.data(), os.DirFS(from)))
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	if err := c.startAgain("etcd", etcdFlags(c.dir)); err != nil {
		return err
	}
	if err := c.startAgain("kube-apiserver", apiServerFlags(c.dir, o)); err != nil {
		return err
	}
	return c.ready(ctx)
}

func (c *ControlPlane) data() string { return filepath.Join(c.dir, "etcd") }

// end ends a program, which is then none of the control plane's.
func (c *ControlPlane) end(name string) {
	if p := c.Process(name); p != nil {
		p.Stop()
		c.processes = slices.DeleteFunc(c.processes, func(other *Process) bool { return other == p })
	}
}

func (c *ControlPlane) startAgain(name string, flags []string) error {
	program, err := Binary()
	if err != nil {
		return err
	}
	return c.run(program, name, flags)
}
