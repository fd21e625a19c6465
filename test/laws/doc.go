// Package laws holds the laws of ARCHITECTURE.md as tests. It has no code of its own: each test reads the source tree,
// and one that fails explains the law that was broken and why it exists.
package laws
