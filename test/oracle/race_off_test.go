//go:build !race

package oracle_test

// raceEnabled says that the tests run with the race detector.
const raceEnabled = false
