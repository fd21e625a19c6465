#!/usr/bin/env bash
# Runs the unit tests for other architectures in QEMU's emulation of processes: arch-test.sh [ARCHITECTURE...], such as s390x, arm64, arm, ppc64le
# and riscv64. s390x is big-endian, and arm has words of 32 bits.
#
# These are the tests that go test -short runs, without the tests of programs and of packages for other systems. QEMU emulates neither bpf() nor
# netlink of netfilter and IPVS here, and emulated processes start none of their own kind. kernel-test.sh runs such tests in a machine.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped='/(cmd|examples|lab|test|node|server|internal/winkernel|internal/configfile|internal/manifest|internal/ebpf/maps)(/|$)'
# These call bpf(), start a process, or unmap what /proc/self/smaps lists: QEMU shows its own addresses there, which are not the program's.
skipped_tests='^Test(Verifier|Counting|Severed|RootCgroup|ProgramsAreCompiledAgain|TheExampleProgramRuns|HijackedSocket|ServedByAnotherUser|ConnectedByAnotherUser|Trim|UnmapSparesOthers)$'

[ $# -gt 0 ] || set -- s390x arm64 arm
status=0
for arch in "$@"; do
	case $arch in
	arm64) emulator=qemu-aarch64-static ;;
	*) emulator=qemu-$arch-static ;;
	esac
	if ! command -v "$emulator" >/dev/null; then
		[ "$(id -u)" = 0 ] || { echo "arch-test: not installed: $emulator. As root: apt-get install qemu-user-static" >&2; exit 1; }
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user-static >/dev/null
	fi
	command -v "$emulator" >/dev/null || { echo "arch-test: qemu-user-static has no $emulator for $arch" >&2; exit 1; }
	for module in . client; do
		echo "== go test -short in $module for $arch"
		(cd "$module" && GOOS=linux GOARCH=$arch CGO_ENABLED=0 go test -short -vet=off -cpu 1 -timeout 30m -exec "$emulator" -skip "$skipped_tests" \
			$(go list ./... | grep -vE "$skipped") | grep --line-buffered -v 'no test files') || status=1
	done
done
exit $status
