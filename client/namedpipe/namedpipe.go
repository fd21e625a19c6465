// Package namedpipe has what both ends of the API need of named pipes of Windows.
//
// Any process may make a pipe whose name is free, and then decides where the connections of all pods go. A name that begins with
// ProtectedPrefix/Administrators/ is free for administrators only.
package namedpipe

import (
	"fmt"
	"strings"
)

const (
	// Scheme begins the address of a pipe, such as npipe:////./pipe/switchyard.
	Scheme    = "npipe:"
	urlPrefix = Scheme + "////./pipe/"
	prefix    = `\\.\pipe\`
)

// Addr is the path of a pipe, as a net.Addr.
type Addr string

// Network returns "npipe".
func (Addr) Network() string { return "npipe" }

func (a Addr) String() string { return string(a) }

// Is reports whether an address is meant to be the address of a pipe.
func Is(address string) bool {
	return strings.HasPrefix(address, Scheme) || strings.HasPrefix(address, prefix)
}

// Path returns the path of the pipe at an address, npipe:////./pipe/NAME or \\.\pipe\NAME. A pipe of another machine is an error.
func Path(address string) (string, error) {
	name, ok := strings.CutPrefix(address, urlPrefix)
	if !ok {
		name, ok = strings.CutPrefix(address, prefix)
	}
	if !ok || name == "" {
		return "", fmt.Errorf(`address %q: want a named pipe of this machine, such as npipe:////./pipe/switchyard or \\.\pipe\switchyard`, address)
	}
	return prefix + strings.ReplaceAll(name, "/", `\`), nil
}

// Address returns the address of the pipe at a path, as Path reads it.
func Address(path string) string {
	return urlPrefix + strings.ReplaceAll(strings.TrimPrefix(path, prefix), `\`, "/")
}
