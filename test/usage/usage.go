// Package usage measures what the process of a test takes: memory, open files and processor time.
package usage

import (
	"runtime"
	"testing"
	"time"
)

// Heap returns the bytes of the heap that are in use after a garbage collection.
func Heap() int { return int(Memory().HeapAlloc) }

// Memory returns the statistics of the memory after a garbage collection.
func Memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // what the first one has finalized
	runtime.ReadMemStats(&m)
	return m
}

// Run runs a benchmark whose iterations do an operation so many times. It reports the time of one operation by a clock of the processor.
// The operation runs on one thread.
func Run(b *testing.B, name string, times int, clock func() time.Duration, do func()) {
	b.Run(name, func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := clock()
		for b.Loop() {
			for range times {
				do()
			}
		}
		Report(b, clock()-before, times)
	})
}

// Report reports the processor time of one of the operations that each iteration has, instead of the elapsed time, which counts other
// processes.
func Report(b *testing.B, took time.Duration, each int) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*each), "cpu-ns/op")
}
