package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/internal/spelling"
)

// NoneOf is the error of a flag whose value is none of two or more words.
func NoneOf(flag, value string, words ...string) error {
	last := len(words) - 1
	text := "none of " + strings.Join(words[:last], ", ") + " and " + words[last]
	if len(words) == 2 {
		text = "neither " + words[0] + " nor " + words[1]
	}
	return fmt.Errorf("--%s: %q is %s%s", flag, value, text, spelling.Meant(value, words))
}

// Complete lets the shell complete the value of a flag that is one of some words.
func Complete(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
