package client_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/switchyard-net/switchyard/client"
)

func ExampleWatcher_Updates() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	w, err := client.NewWatcher(client.Options{
		Name:    "printer",
		OnError: func(err error) { fmt.Fprintln(os.Stderr, err) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	for u := range w.Updates(ctx) {
		fmt.Println(u.Position.Rev, u.Full, len(u.Changed), len(u.Removed))
		w.Report(client.Status{Applied: u.Position})
	}
}
