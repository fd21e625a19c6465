//go:build !linux

package inputs

import "syscall"

func isolations() []*syscall.SysProcAttr { return nil }

func resident(int) int { return 0 }
