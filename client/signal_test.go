//go:build unix

package client

import (
	"os"
	"syscall"
	"testing"
)

func TestASignalCancels(t *testing.T) {
	var net wire
	epc := net.client()
	epc.CancelOn(syscall.SIGUSR1)
	got := goNext(epc)
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if r := <-got; !r.canceled {
		t.Errorf("got %v", r)
	}
}
