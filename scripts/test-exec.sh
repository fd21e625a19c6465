#!/bin/sh
# Runs the tests of a package, as go test -exec does: test-exec.sh PROGRAM [FLAG...], in the directory of the package.
#
# Tests that use testing/synctest have one processor: two timers that fire at once in a bubble crash the race detector (golang/go#78156). It finds the
# same races.
set -eu
program=$1
shift
if grep -qsF '"testing/synctest"' ./*_test.go; then
	set -- -test.cpu=1 "$@"
fi
exec "$program" "$@"
