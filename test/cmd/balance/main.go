//go:build linux

// Command balance sends thousands of real connections through each dataplane, and compares where they go with weights and hashes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/switchyard-net/switchyard/test/balance"
	"github.com/switchyard-net/switchyard/test/netns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := netns.Run(func() int {
		if err := run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "balance: %v\n", err)
			return 1
		}
		return 0
	})
	stop()
	os.Exit(code)
}

func run(ctx context.Context) error {
	var o balance.Options
	var modes string
	flag.StringVar(&modes, "modes", "", "modes to check, separated by commas (default: all): "+strings.Join(balance.Modes(), ", "))
	flag.IntVar(&o.Connections, "connections", 0, "connections of each row (default 20000)")
	flag.DurationVar(&o.Wait, "wait", 0, "how long a client may wait that meets a silent endpoint (default 4s)")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; run with -h for usage", flag.Arg(0))
	}
	if modes != "" {
		o.Modes = strings.Split(modes, ",")
	}
	rows, err := balance.Measure(ctx, o, func(r balance.Row) { fmt.Fprintf(os.Stderr, "%s: %s\n", r.Mode, r.Check) })
	err = errors.Join(err, balance.WriteTable(os.Stdout, rows))
	if err == nil && balance.Failed(rows) {
		err = errors.New("not all is as promised; see above")
	}
	return err
}
