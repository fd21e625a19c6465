// Package ebpftest runs the lookups of socket hooks without sockets, for tests and measurements of what readers see while maps change.
package ebpftest
