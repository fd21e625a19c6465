package client

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// HandlerFunc is called with the services of the node, all of them, ordered by namespace and name.
type HandlerFunc func(items []*localnetv1.ServiceEndpoints)

// Run is the whole main function of a simple program. It parses the standard flags, and calls the handlers in order
// with each new state, until the program gets a signal to end. With --once it returns after the first state and prints
// the flags that resume from there. Errors are logged to stderr and retried.
//
// It defines flags, reads the command line and handles signals. Programs that do this themselves use [EndpointsClient].
func Run(handlers ...HandlerFunc) {
	once := flag.Bool("once", false, "only one fetch loop")
	epc := New(flag.CommandLine)
	flag.Parse()
	epc.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	epc.CancelOnSignals()
	epc.run(*once, os.Stderr, handlers)
}

func (epc *EndpointsClient) run(once bool, hints io.Writer, handlers []HandlerFunc) {
	defer epc.Cancel()
	for {
		items, canceled := epc.Next()
		if canceled {
			return
		}
		for _, handle := range handlers {
			handle(items)
		}
		if once {
			fmt.Fprintf(hints, "to resume this watch, use --instance-id %d --rev %d\n", epc.InstanceID, epc.Rev)
			return
		}
	}
}
