package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepairWindow checks that repairs are a fault only if they follow each other within the window.
func TestRepairWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repairs
		for range repairThreshold + 2 {
			r.note()
			if err := r.fault(); err != nil {
				t.Errorf("single repairs: %v", err)
			}
			time.Sleep(repairWindow + time.Second)
		}
		for range repairThreshold {
			if err := r.fault(); err != nil {
				t.Errorf("too early: %v", err)
			}
			r.note()
		}
		if err := r.fault(); err == nil || !strings.Contains(err.Error(), "repaired 3 times within 5m0s") || !strings.Contains(err.Error(), "nft monitor") {
			t.Errorf("the fault is %v", err)
		}
		time.Sleep(repairWindow + time.Second)
		if err := r.fault(); err != nil {
			t.Errorf("after the window: %v", err)
		}
	})
}
