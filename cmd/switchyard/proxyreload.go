package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/configfile"
)

// settle is how long a configuration file must be left alone before it is read: editors and ConfigMaps write in steps.
const settle = 100 * time.Millisecond

// awaitConfig follows the configuration file, and returns the configuration with which the process is to go on, or nil when ctx
// ends. It returns an error if the file is broken and configHardFail says that the process ends then.
func (d *daemon) awaitConfig(ctx context.Context) (*config.Config, error) {
	path := d.flags.configFile
	if path == "" {
		<-ctx.Done()
		return nil, nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		// The directory: the file itself is replaced, by editors and by ConfigMaps.
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		d.log.Warn("changes of the configuration file are not noticed", "file", path, "error", err)
		<-ctx.Done()
		return nil, nil
	}
	due := time.After(settle) // it may have changed between reading it and watching it
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-watcher.Events:
			due = time.After(settle)
		case <-watcher.Errors:
			due = time.After(settle)
		case <-due:
			due = nil
			data, err := os.ReadFile(path)
			if err != nil {
				continue // between two versions
			}
			if now := sha256.Sum256(data); now != d.flags.read {
				d.flags.read = now
				if c, err := d.reload(data); c != nil || err != nil {
					return c, err
				}
			}
		}
	}
}

// reload returns the configuration of a changed file, as far as it can be applied to the running process, or nil if that is
// none of it.
func (d *daemon) reload(data []byte) (*config.Config, error) {
	loaded, notes, broken := configfile.Load(data, configfile.Options{Name: d.flags.configFile, Platform: runtime.GOOS})
	if _, err := config.Choose(d.c, loaded, broken); err != nil {
		return nil, fmt.Errorf("the configuration file has become invalid, and configHardFail is true: %w", err)
	}
	if broken != nil {
		for _, line := range lines(broken) {
			d.log.Warn(line)
		}
		d.log.Warn("the configuration file is broken; the process goes on with what it last said", "file", d.flags.configFile)
		return nil, nil
	}
	for _, n := range notes {
		d.log.Warn(d.flags.configFile + ": " + n.String())
	}
	if err := d.flags.override(loaded); err != nil {
		return nil, err
	}
	live, restart := config.Diff(d.c, loaded)
	if len(restart) > 0 {
		d.log.Warn("these changes take effect when the process is started again", "fields", strings.Join(restart, ", "))
		loaded.Revert(restart, d.c)
	}
	if len(live) == 0 {
		return nil, nil
	}
	d.log.Info("the configuration has changed", "fields", strings.Join(live, ", "))
	return loaded, nil
}
