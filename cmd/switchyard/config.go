package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and convert configuration files, also kube-proxy's",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigConvertCommand(), newConfigValidateCommand(), newConfigDefaultsCommand())
	return cmd
}

// filesUsage says what the commands read.
const filesUsage = `Of several files, and several documents in a file, one is the KubeProxyConfiguration. The others
are KubeProxyInstanceConfigurations with the settings of one node. A ConfigMap stands for the
configuration in it, and other documents, such as kubeadm's, are skipped. The file of a single
dataplane, such as a NFTablesConfiguration, may replace the KubeProxyConfiguration. - stands for
standard input.`

func newConfigConvertCommand() *cobra.Command {
	var out, version string
	cmd := &cobra.Command{
		Use:   "convert FILE...",
		Short: "Write a configuration in the latest version, v1alpha2, or back in v1alpha1",
		Long: `Convert reads a configuration of any version, such as the ConfigMap kube-proxy, and writes it as one
file, with every field. Comments go with their fields. Standard error names the fields that move or
are dropped, with the warnings that a command which takes the file would log. A kind for a single
dataplane has one version, which is written.

` + filesUsage,
		Example: `  switchyard config convert kube-proxy.yaml -o switchyard.yaml
  kubectl -n kube-system get configmap kube-proxy -o yaml | switchyard config convert -
  switchyard config convert switchyard.yaml --to v1alpha1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(configfile.Versions(), version) {
				return cli.Usage(cmd.CommandPath(), cli.NoneOf("to", version, configfile.Versions()...))
			}
			files, err := readFiles(standardInput(cmd), args...)
			if err != nil {
				return err
			}
			c, notes, err := configfile.LoadFiles(files, readOptions)
			if err != nil {
				printNotes(cmd, notes)
				return invalid(files, err)
			}
			text, notes, err := configfile.Convert(files, version, readOptions)
			printNotes(cmd, notes)
			if err != nil {
				return err
			}
			printWarnings(cmd, files, notes, c)
			if out != "" {
				return writeFile(out, text)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write, instead of standard output")
	cmd.Flags().StringVar(&version, "to", configfile.Versions()[0], "version to write: "+strings.Join(configfile.Versions(), " or "))
	cli.Complete(cmd, "to", configfile.Versions()...)
	return cmd
}

func newConfigValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Name everything that is wrong in a configuration",
		Long: `Validate names everything that is wrong in a configuration, and prints the warnings that
a command which takes the file would log.

` + filesUsage,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := readFiles(standardInput(cmd), args...)
			if err != nil {
				return err
			}
			c, notes, err := configfile.LoadFiles(files, readOptions)
			printNotes(cmd, notes)
			if err != nil {
				return invalid(files, err)
			}
			printWarnings(cmd, files, notes, c)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "switchyard: %s is valid\n", namesOf(files))
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
				return cli.Usage(cmd.CommandPath(), cli.NoneOf("version", version, "v1alpha1", "v1alpha2"))
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
	cli.Complete(cmd, "version", "v1alpha1", "v1alpha2")
	return cmd
}

// readOptions are the options of files that may also be meant for another platform.
var readOptions = configfile.Options{SkipOthers: true, Dataplanes: configfile.DataplaneKinds()}

// fileNames is a flag that may be given more than once. The flag has the same type as kube-proxy's, which takes
// one file.
type fileNames []string

func (f *fileNames) String() string     { return strings.Join(*f, ",") }
func (f *fileNames) Set(v string) error { *f = append(*f, v); return nil }
func (*fileNames) Type() string         { return "string" }

func namesOf(files []configfile.File) string {
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// configOf returns what files say, or what a command goes by that is given none.
func configOf(cmd *cobra.Command, names fileNames) (*config.Config, error) {
	if len(names) == 0 {
		return flagConfig(), nil
	}
	files, err := readFiles(standardInput(cmd), names...)
	if err != nil {
		return nil, err
	}
	c, _, err := configfile.LoadFiles(files, readOptions)
	if err != nil {
		return nil, invalid(files, err)
	}
	return c, nil
}

func invalid(files []configfile.File, err error) error {
	return fmt.Errorf("%s is not a valid configuration:\n%w", namesOf(files), err)
}

func printNotes(cmd *cobra.Command, notes []config.Note) {
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: %s: %v\n", n.File, n)
	}
}

// printWarnings prints what a command that takes the files would warn of at its start.
func printWarnings(cmd *cobra.Command, files []configfile.File, notes []config.Note, c *config.Config) {
	print := func(text string) { fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: %s: %s\n", namesOf(files), text) }
	noCommand := slices.ContainsFunc(notes, func(n config.Note) bool { return slices.Contains(configfile.DataplaneKinds(), n.Path) })
	if note := modeNote(c); note != "" && !noCommand {
		print(note)
	}
	warnWithoutEffect(c, slog.New(warningPrinter{slog.DiscardHandler, print}))
}

// warningPrinter is the handler of a log that prints each line in one text.
type warningPrinter struct {
	slog.Handler
	print func(text string)
}

func (warningPrinter) Enabled(context.Context, slog.Level) bool { return true }

func (p warningPrinter) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += ": " + a.Value.String()
		return true
	})
	p.print(text)
	return nil
}

// lines splits an error that joins others into one text for each.
func lines(err error) []string { return strings.Split(err.Error(), "\n") }
