package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// WriteManual writes man pages of a command and its listed subcommands into the directory man1 of dir. It writes their sections of the page of all
// commands to page.
func WriteManual(dir string, page io.Writer, c *cobra.Command) error {
	if err := WritePage(dir, page, c); err != nil {
		return err
	}
	for _, sub := range Listed(c) {
		if err := WriteManual(dir, page, sub); err != nil {
			return err
		}
	}
	return nil
}

// WritePage is WriteManual without the subcommands.
func WritePage(dir string, page io.Writer, c *cobra.Command) error {
	c.InitDefaultHelpFlag()
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
	if err := os.WriteFile(filepath.Join(dir, "man1", name), []byte(manPage(c)), 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintf(page, "\n## %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), c.Short, strings.TrimSpace(helpText(c)))
	return err
}

// Listed returns the subcommands that the help of a command lists.
func Listed(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			list = append(list, sub)
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
	var seeAlso []string
	if c.HasParent() {
		seeAlso = append(seeAlso, strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, sub := range Listed(c) {
		seeAlso = append(seeAlso, strings.ReplaceAll(sub.CommandPath(), " ", "-")+"(1)")
	}
	if len(seeAlso) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(seeAlso, ", ")))
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
