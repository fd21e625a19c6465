// Package upgrade compares this version with the last release.
//
// releases.txt names the commit of each release. The sources of a release come from the history of the repository and are built into .cache,
// so that no binary is in the repository. testdata has what a release has put on the wire and its configuration files. The tests read
// these without the history, as today's programs would.
package upgrade
