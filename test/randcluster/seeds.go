package randcluster

import "os"

// Seeds returns how many histories a test plays: few, or many when SWITCHYARD_TEST_HISTORIES is set, as by make histories.
func Seeds(few, many uint64) uint64 {
	if os.Getenv("SWITCHYARD_TEST_HISTORIES") != "" {
		return many
	}
	return few
}
