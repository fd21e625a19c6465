package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// quietPeriod is how long a configuration file must be left alone before it is read: editors and ConfigMaps write in steps.
const quietPeriod = 100 * time.Millisecond

// latestReading is how long after the first event it is read all the same: other files of its directory may be written all the time.
const latestReading = time.Second

// followConfig follows the configuration file until ctx ends, and applies its changes to the process. It returns an
// error if that fails and configHardFail is set, which ends the process.
func (d *daemon) followConfig(ctx context.Context) error {
	paths := d.files.paths
	if len(paths) == 0 {
		return nil
	}
	if fromStdin(paths) {
		d.log.Info("standard input is read once: the configuration does not change while the process runs", "files", strings.Join(paths, ", "))
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		for _, path := range paths {
			// The directory: the file itself is replaced, by editors and by ConfigMaps.
			err = errors.Join(err, watcher.Add(filepath.Dir(path)))
		}
	}
	if err != nil {
		d.log.Warn("cannot watch configuration file; changes take effect after a restart", "file", strings.Join(paths, ", "), "error", err)
		return nil
	}
	return d.followEvents(ctx, watcher.Events, watcher.Errors)
}

// followEvents reads the configuration files after events of their directories, and faults of watching them.
func (d *daemon) followEvents(ctx context.Context, events <-chan fsnotify.Event, faults <-chan error) error {
	read, unreadable := d.files.read, ""
	due := time.After(quietPeriod) // they may have changed between reading and watching them
	var latest time.Time           // zero without an event since they were read
	postpone := func() {
		if latest.IsZero() {
			latest = time.Now().Add(latestReading)
		}
		due = time.After(min(quietPeriod, time.Until(latest)))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			postpone()
		case <-faults:
			postpone()
		case <-due:
			due, latest = nil, time.Time{}
			files, err := configfile.ReadFiles(d.files.paths...)
			if err != nil {
				if text := err.Error(); !errors.Is(err, fs.ErrNotExist) && text != unreadable { // otherwise it is between two versions
					unreadable = text
					d.log.Warn("cannot read configuration file; keeping last known good configuration", "error", err)
				}
				continue
			}
			unreadable = ""
			now := digest(files)
			if now == read {
				continue
			}
			read = now
			switch again, err := d.reload(files); {
			case err != nil:
				return err
			case again:
				read, due = [sha256.Size]byte{}, time.After(reloadPause)
			}
		}
	}
}

// reloadPause is the time between attempts to go on with a changed configuration.
const reloadPause = 5 * time.Second

// reload lets the process go on with what a changed file says, as far as that can be while it runs. It reports whether to try again
// later, and returns an error if the process must end.
func (d *daemon) reload(files []configfile.File) (again bool, err error) {
	was := d.node.Config()
	loaded, notes, broken := configfile.LoadFiles(files, d.files.options())
	if broken == nil {
		broken = d.override(loaded)
	}
	if _, err := config.Choose(was, loaded, broken); err != nil {
		return false, fmt.Errorf("the configuration file has become invalid, and configHardFail is true: %w", err)
	}
	if broken != nil {
		for _, line := range lines(broken) {
			d.log.Warn("invalid configuration file", "error", line)
		}
		d.log.Warn("invalid configuration file; keeping last known good configuration", "file", strings.Join(d.files.paths, ", "))
		return false, nil
	}
	for _, n := range notes {
		d.log.Warn("configuration warning", "problem", n.File+": "+n.String())
	}
	live, restart, none := config.Diff(was, loaded)
	for _, path := range d.files.fixed {
		if i := slices.Index(live, path); i >= 0 {
			live, restart = slices.Delete(live, i, i+1), append(restart, path)
		}
	}
	if len(none) > 0 || slices.Contains(live, "featureGates") {
		warnWithoutEffect(loaded, d.log)
	}
	if len(restart) > 0 {
		d.log.Warn("these changes take effect after a restart", "fields", strings.Join(restart, ", "))
		loaded.Revert(restart, was)
	}
	if len(live)+len(none) == 0 {
		return false, nil
	}
	if err := d.node.Reconfigure(loaded); err != nil {
		if loaded.ConfigHardFail {
			return false, fmt.Errorf("go on with the changed configuration: %w", err)
		}
		d.log.Warn("cannot apply the changed configuration; keeping the current one, will retry",
			"pause", reloadPause, "error", err)
		return true, nil
	}
	d.verbosity.set(&loaded.Logging)
	d.log.Info("the configuration has changed", "fields", strings.Join(slices.Concat(live, none), ", "))
	return false, nil
}

// warnWithoutEffect names what c sets to no effect.
func warnWithoutEffect(c *config.Config, log *slog.Logger) {
	if fields := c.WithoutEffect(); len(fields) > 0 {
		log.Warn("settings that have no effect in this release", "fields", strings.Join(fields, ", "), "remedy", "leave them out; see docs/config-reference.md")
	}
	if gates := c.UnknownGates(); len(gates) > 0 {
		log.Warn("unknown feature gates", "gates", strings.Join(gates, ", "), "known", "the gates of Kubernetes "+config.GatesRelease(), "remedy", "check the names, or leave them out")
	}
}
