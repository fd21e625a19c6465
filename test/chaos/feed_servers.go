//go:build linux

package chaos

import (
	"errors"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/switchyard-net/switchyard/test/topology"
)

// serversFeed is two processes in front of the dataplane under test. A relay reads a manifest, and a server of the node-local API follows
// the relay.
type serversFeed struct {
	*fileFeed
	host *topology.Host
	dir  string
	// processes are the relay and the server, nil before their first start.
	processes [2]*process
}

func newServersFeed(dir, program string, host *topology.Host, d *dataplane) (*serversFeed, error) {
	files, err := newFileFeed(dir, host.Name, d)
	if err != nil {
		return nil, err
	}
	f := &serversFeed{fileFeed: files, host: host, dir: dir}
	for i := range f.processes {
		if err := f.start(i, program); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// socket is where one of the processes listens.
func (f *serversFeed) socket(i int) string {
	return filepath.Join(f.dir, [...]string{"relay.sock", "api.sock"}[i])
}

// start starts one of the processes.
func (f *serversFeed) start(i int, program string) (err error) {
	args := []string{"serve", "--listen", "unix://" + f.socket(i), "--admin-bind-address", "none"}
	if i == 0 {
		args = append(args, "--nodes", "--source", f.fileFeed.dir)
	} else {
		args = slices.Concat(args, []string{"--relay", "unix://" + f.socket(0), "--node", f.node}, podArgs())
	}
	f.processes[i], err = startProcess(f.host, false, filepath.Join(f.dir, "servers.log"), program, args...)
	return err
}

// stop ends one of the processes, if it runs.
func (f *serversFeed) stop(i int) error {
	p := f.processes[i]
	if p == nil {
		return nil
	}
	f.processes[i] = nil
	if err := p.end(syscall.SIGTERM); err != nil {
		return errors.Join(err, tail(filepath.Join(f.dir, "servers.log")))
	}
	return nil
}

func (f *serversFeed) args() []string {
	return slices.Concat([]string{"apply", f.dataplane.mode, "--api", "unix://" + f.socket(1)}, podArgs(), f.dataplane.args())
}

func (f *serversFeed) close() error { return errors.Join(f.stop(1), f.stop(0), f.fileFeed.close()) }
