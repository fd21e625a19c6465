package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/configfile"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and convert configuration files of 'switchyard proxy' and kube-proxy",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigConvertCommand(), newConfigValidateCommand(), newConfigDefaultsCommand())
	return cmd
}

func newConfigConvertCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "convert FILE",
		Short: "Write a configuration file in the latest version, v1alpha2",
		Long: `Convert reads a configuration file of any version, such as the config.conf in the ConfigMap
kube-proxy, and writes it in the latest one, with every field. What lands elsewhere or
nowhere is named on standard error.`,
		Example: `  switchyard config convert kube-proxy.yaml -o switchyard.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readConfig(cmd, args[0])
			if err != nil {
				return err
			}
			text, err := configfile.Marshal(c)
			if err != nil {
				return err
			}
			if out != "" {
				return writeFile(out, text)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write, instead of standard output")
	return cmd
}

func newConfigValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Name everything that is wrong in a configuration file",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readConfig(cmd, args[0])
			if err != nil {
				return err
			}
			if note := modeNote(c); note != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: %s: %s\n", args[0], note)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "switchyard: %s is valid\n", args[0])
			return err
		},
	}
}

func newConfigDefaultsCommand() *cobra.Command {
	files := map[string]any{"v1alpha1": v1alpha1.Default(), "v1alpha2": v1alpha2.Default()}
	var version string
	cmd := &cobra.Command{
		Use:   "defaults",
		Short: "Print a configuration file with every field and its default",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, ok := files[version]
			if !ok {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--version: %q is neither v1alpha1 nor v1alpha2", version)}
			}
			text, err := configfile.MarshalObject(file)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&version, "version", "v1alpha2", "version of the file: v1alpha1 or v1alpha2")
	return cmd
}

// readConfig reads a file for any platform, and prints what the operator should know about it.
func readConfig(cmd *cobra.Command, path string) (*config.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	c, notes, err := configfile.Load(data, configfile.Options{Name: path})
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: %s: %v\n", path, n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a valid configuration:\n%w", path, err)
	}
	return c, nil
}

// writeFile writes a file so that whoever reads it sees the old or the new text, never a part.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// lines splits an error that joins others into one text for each.
func lines(err error) []string { return strings.Split(err.Error(), "\n") }
