package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newManualCommand is for those who package the program.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "manual DIR",
		Short: "Write man pages, shell completions and a page of all commands",
		Long: `Manual writes, into a directory that it makes, what packages of this program install: man1 with
a man page for each command, completions for bash, zsh and fish, and commands.md.`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return writeManual(cmd.Root(), args[0]) },
	}
}

func writeManual(root *cobra.Command, dir string) error {
	for _, sub := range []string{"man1", "completions"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	var page strings.Builder
	page.WriteString("# Commands\n\nEach command, as `--help` prints it. Man pages and shell completions are made with it.\n")
	for _, c := range allCommands(root) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		if err := os.WriteFile(filepath.Join(dir, "man1", name), []byte(manPage(c)), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&page, "\n## %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), c.Short, strings.TrimSpace(helpText(c)))
	}
	if err := os.WriteFile(filepath.Join(dir, "commands.md"), []byte(page.String()), 0o644); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"switchyard.bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"_switchyard":     root.GenZshCompletion,
		"switchyard.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			return fmt.Errorf("completion %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "completions", name), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// allCommands are those that help lists, from the top down.
func allCommands(c *cobra.Command) []*cobra.Command {
	c.InitDefaultHelpFlag()
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			list = append(list, allCommands(sub)...)
		}
	}
	return list
}

func helpText(c *cobra.Command) string {
	return strings.TrimSpace(c.Long) + "\n\n" + c.UsageString()
}

// manPage returns a command's page as roff.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	title := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" switchyard \"Switchyard\"\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(title)), roff(title), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n", roff(c.UseLine()))
	b.WriteString(".SH DESCRIPTION\n" + paragraphs(c.Long))
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	if c.HasAvailableLocalFlags() {
		b.WriteString(".SH OPTIONS\n")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Deprecated != "" {
				return
			}
			kind, usage := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
				usage += " (default: " + f.DefValue + ")"
			}
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(name+" "+kind)), roff(usage))
		})
	}
	var beside []string
	if c.HasParent() {
		beside = append(beside, strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			beside = append(beside, strings.ReplaceAll(sub.CommandPath(), " ", "-")+"(1)")
		}
	}
	if len(beside) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(beside, ", ")))
	}
	return b.String()
}

// paragraphs sets indented lines as they are, and fills others.
func paragraphs(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(part, " ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(part))
			continue
		}
		fmt.Fprintf(&b, ".PP\n%s\n", roff(part))
	}
	return b.String()
}

// roff escapes what the formatter would take for its own: backslashes, hyphens, and a control character at the start of a line.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
