package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/client/regularfile"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// stdinName stands for standard input among the names of configuration files.
const stdinName = "-"

// stdinTimeout is how long standard input may take to end.
const stdinTimeout = time.Minute

// input reads standard input to its end.
type input func() ([]byte, error)

// standardInput is the standard input of a command. Its size is bounded like the size of a configuration
// file, and it must end.
func standardInput(cmd *cobra.Command) input {
	return func() ([]byte, error) {
		var data []byte
		ended := make(chan error, 1)
		go func() {
			var err error
			data, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), configfile.MaxFile+1))
			ended <- err
		}()
		select {
		case <-cmd.Context().Done():
			return nil, cmd.Context().Err()
		case <-time.After(stdinTimeout):
			return nil, fmt.Errorf("it has not ended within %v: close it after the configuration, or name a file", stdinTimeout)
		case err := <-ended:
			if err == nil && len(data) > configfile.MaxFile {
				err = fmt.Errorf("it has more than %d MiB: make it smaller", configfile.MaxFile>>20)
			}
			return data, err
		}
	}
}

// readFiles reads the configuration files with these names.
func readFiles(stdin input, names ...string) ([]configfile.File, error) {
	var files []configfile.File
	if i := slices.Index(names, stdinName); i >= 0 && fromStdin(names[i+1:]) {
		return nil, fmt.Errorf("standard input (%s) is named twice, and can be read once: leave one out", stdinName)
	}
	for _, name := range names {
		if name == stdinName {
			data, err := stdin()
			if err != nil {
				return nil, fmt.Errorf("read the configuration from standard input: %w", err)
			}
			files = append(files, configfile.File{Name: "stdin", Data: data})
			continue
		}
		read, err := configfile.ReadFiles(name)
		if _, ok := errors.AsType[*regularfile.NotRegularError](err); ok {
			return nil, fmt.Errorf("%w; or name %s, and the configuration is read from standard input", err, stdinName)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, read...)
	}
	return files, nil
}

// fromStdin reports whether standard input is among the files with these names.
func fromStdin(names []string) bool { return slices.Contains(names, stdinName) }
