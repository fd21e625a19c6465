#!/bin/sh
# Installs what the tests look at the kernel with, or says what is missing. Switchyard itself needs none of it.
set -eu

missing=
for pair in nft:nftables conntrack:conntrack iptables:iptables ipset:ipset systemd-analyze:systemd; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || [ -x "/usr/sbin/${pair%%:*}" ] || missing="$missing ${pair##*:}"
done
# The race detector is built with C.
command -v gcc >/dev/null 2>&1 || command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
# For the example of a client in Python.
python3 -c 'import grpc' 2>/dev/null || /usr/bin/python3 -c 'import grpc' 2>/dev/null || missing="$missing python3-grpcio python3-protobuf"
# For the page.
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || missing="$missing chromium"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "== install for the tests:$missing"
	export DEBIAN_FRONTEND=noninteractive
	# Another apt-get that runs, like that of unattended upgrades, is waited for, for five minutes. By itself it waits for one lock of three only.
	run() {
		for _ in $(seq 60); do
			problem=$(LC_ALL=C apt-get "$@" 2>&1 >/dev/null) && return 0
			case $problem in
			*"Could not get lock"*) sleep 5 ;;
			*) return 1 ;;
			esac
		done
		return 1
	}
	if run update -qq && run install -y -qq --no-install-recommends $missing; then
		exit 0
	fi
	echo "$problem" | tail -n 3
	echo "   apt-get could not install them; the tests that need them are skipped"
	exit 0
fi
echo "== not installed:$missing. The tests that need them are skipped. On Debian or Ubuntu, as root:"
echo "   apt-get install$missing"
