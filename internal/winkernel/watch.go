package winkernel

import (
	"log/slog"
	"sync"
	"time"
)

// watchPeriod is the time between two looks at the process of HNS. HNS does not report its own restarts.
const watchPeriod = time.Second

// watchProcess calls restarted whenever a process was replaced, or is back, until end is called. process returns its ID, 0 if it does not run.
func watchProcess(process func() (uint32, error), log *slog.Logger, restarted func()) (end func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(watchPeriod)
		defer ticker.Stop()
		known, running, failing := uint32(0), true, false
		for {
			id, err := process()
			switch {
			case err != nil:
				if !failing {
					log.Warn("cannot watch HNS; what it forgets is repaired with the next verification", "error", err)
				}
			case id == 0:
				running = false
			default:
				if known != 0 && (id != known || !running) {
					log.Info("HNS has restarted")
					restarted()
				}
				known, running = id, true
			}
			failing = err != nil
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
