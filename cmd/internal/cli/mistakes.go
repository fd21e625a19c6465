package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/internal/spelling"
)

// explainFlag adds to the error of a flag the value or flag that was probably meant.
func explainFlag(c *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(c, unknown.GetSpecifiedName(), err)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok && invalid.GetFlag().Value.Type() == "duration" {
		if n, numErr := strconv.Atoi(invalid.GetValue()); numErr == nil {
			return fmt.Errorf("%w; write %v for %d seconds", err, time.Duration(n)*time.Second, n)
		}
	}
	return err
}

func unknownFlag(c *cobra.Command, name string, err error) error {
	name = strings.ReplaceAll(name, "_", "-")
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if like := spelling.Closest(name, names); like != "" && len(name) > 1 {
		return fmt.Errorf("%w: did you mean --%s?", err, like)
	}
	return err
}

// explainArgs adds to the error of an argument the command that was probably meant.
func explainArgs(c *cobra.Command, args []string, err error) error {
	if !c.HasAvailableSubCommands() || len(args) == 0 {
		return err
	}
	var names []string
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if strings.HasPrefix(sub.Name(), args[0]) {
			return fmt.Errorf("%w: did you mean %q?", err, sub.Name())
		}
		names = append(names, sub.Name())
	}
	if like := spelling.Closest(args[0], names); like != "" {
		return fmt.Errorf("%w: did you mean %q?", err, like)
	}
	return err
}
