// Package netns makes anonymous network namespaces inside the process and runs functions in them.
//
// A namespace lives as long as its [NS] is open, or a socket or device is left in it. Nothing is written below /run,
// no command is executed, and nothing needs to be cleaned up after a crash. Where the process is not root, [Main] and
// [Reexec] run the program again as root of a new user namespace, if the system allows it. The package exists on
// Linux only.
package netns
