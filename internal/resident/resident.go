// Package resident gives back memory that a process needed for its start only.
package resident

import "runtime/debug"

// Trim collects garbage and returns free memory to the kernel, and does what [Unmap] does. It stops the process for some milliseconds.
func Trim() {
	debug.FreeOSMemory()
	Unmap()
}
