package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// serviceName is the name of the service, and the source of its events. The manager ignores the name, because the
// process has one service.
const serviceName = "switchyard"

// stopHint is how long the service manager is asked to wait for the end of the process. userspace.drainTimeout may take more.
const stopHint = 30 * time.Second

// asService calls run as the service that the service manager has started this process for. The context ends when that is stopped, and when the machine
// shuts down.
func asService(ctx context.Context, run func(context.Context) error) error {
	s := &service{ctx: ctx, run: run}
	err := svc.Run(serviceName, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return fmt.Errorf("windows.runAsService: the service manager has not started this process: create a service with this command line (sc.exe create), "+
			"or omit --windows-service: %w", err)
	}
	return errors.Join(err, s.err)
}

// service runs for the service manager.
type service struct {
	ctx context.Context
	run func(context.Context) error
	// err is why it has ended.
	err error
}

// Execute implements [svc.Handler].
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for {
		select {
		case s.err = <-ended:
			if s.err != nil {
				return true, cli.ExitError
			}
			return false, cli.ExitOK
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: uint32(stopHint.Milliseconds())}
				cancel()
			}
		}
	}
}

// openEvents returns the machine's event log.
func openEvents() (events, error) { return eventlog.Open(serviceName) }
