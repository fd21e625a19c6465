// Package resident gives back memory that a process needed for its start only.
package resident

import "runtime/debug"

// Trim collects garbage and returns free memory to the kernel. On Linux it also unmaps the pages of the program itself that the start
// went through, which the kernel keeps in its cache: those that are still needed are mapped again when they are used, without reading
// the file. It stops the process for some milliseconds.
func Trim() {
	debug.FreeOSMemory()
	unmapProgram()
}
