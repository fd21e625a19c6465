// Package laws holds the laws of ARCHITECTURE.md as tests. It has no code of its own. Each test reads the source tree, and a failing test
// explains which law was broken and why the law exists.
package laws
