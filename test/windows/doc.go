// Package windows tests the program as a Windows machine runs it: its commands, and the files and connections that they use.
//
// The tests are for Windows only. On Linux, `make test-windows` runs them in wine, which is no proof for Windows, and finds what cannot work there.
package windows
