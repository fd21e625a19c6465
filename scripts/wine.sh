#!/usr/bin/env bash
# Runs a Windows program in wine 10, without a display, and exits with its status. Go runs tests with it:
#
#	GOOS=windows go test -exec "$PWD/scripts/wine.sh" ./state
#
# usage: scripts/wine.sh PROGRAM.exe [ARGUMENT...]
#        scripts/wine.sh --overlay
#
# --overlay prints the name of a file for go's flag -overlay. Go gives each UDP socket a setting that wine lacks (SIO_UDP_NETRESET), and gives the
# socket up; what is built with the overlay goes on without.
#
# Wine comes from Debian 13, whose packages are unpacked into .cache/wine and not installed; delete that to get newer ones.
# The program sees those, this repository, the directories that it and its caller are in, and no other files. What it writes
# to drive C: goes with it, and so does every process that it leaves behind.
#
# It needs root or user namespaces, and apt-get with Debian's keys. After WINE_TIMEOUT (10m) the program is stopped: status 124.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$(mkdir -p "$repository/.cache/wine" && cd -P "$repository/.cache/wine" && pwd)
release=trixie
keys=/usr/share/keyrings/debian-archive-keyring.gpg
# What else libwine needs is for graphics, sound, devices, and TLS of Windows' own making; Go has its own.
packages="wine64 libwine libz-mingw-w64 libc6 libgcc-s1 libunwind8 liblzma5"
dlls=/usr/lib/x86_64-linux-gnu/wine/x86_64-windows

die() { echo "wine: $*" >&2; exit 1; }

# download unpacks wine, with package lists that are not this machine's: that may be another release of Debian.
download() {
	[ ! -e "$cache/complete" ] || return 0
	[ "$(uname -m)" = x86_64 ] || die "needs an x86-64 machine, this is $(uname -m)"
	command -v apt-get >/dev/null && [ -e "$keys" ] || die "needs apt-get and $keys: on Debian, apt-get install debian-archive-keyring"
	echo "== download wine of Debian $release" >&2
	local apt=$cache/apt deb
	rm -rf "$apt" "$cache/root"
	mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,packages} "$cache/root"
	touch "$apt/status"
	echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/debian $release main" >"$apt/sources.list"
	local options=(-qq -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
		-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o APT::Architecture=amd64
		-o "APT::Sandbox::User=$(id -un)")
	apt-get "${options[@]}" update >&2 || die "apt-get could not read Debian's package lists"
	(cd "$apt/packages" && apt-get "${options[@]}" download $packages >&2) || die "apt-get could not download $packages"
	for deb in "$apt/packages"/*.deb; do dpkg-deb -x "$deb" "$cache/root"; done
	rm -r "$apt"
	touch "$cache/complete"
}

# inside makes the root directory of wine, in the namespaces of the command at the end, and runs a program there.
inside() {
	local root=$cache/mnt directory=$1 program=$2 file
	mount -t tmpfs none "$root"
	mkdir -p "$root"/{usr,proc,sys,dev,etc,tmp}
	ln -s usr/lib usr/lib64 "$root"
	mount --bind "$cache/root/usr" "$root/usr"
	mount --rbind /dev "$root/dev"
	mount --rbind /sys "$root/sys"
	mount -t proc proc "$root/proc"
	echo 'root:x:0:0:root:/tmp:/bin/false' >"$root/etc/passwd"
	echo '127.0.0.1 localhost' >"$root/etc/hosts"
	for file in "$repository" "$(dirname "$program")" "$directory"; do
		[ -d "$root/$file" ] || { mkdir -p "$root/$file" && mount --bind "$file" "$root/$file"; }
	done
	# A directory as it needs it, without what wine makes itself at its first start: that wants a display, and takes minutes.
	mkdir -p "$root"/prefix/{dosdevices,drive_c/windows/temp}
	ln -s ../drive_c "$root/prefix/dosdevices/c:"
	ln -s / "$root/prefix/dosdevices/z:"
	ln -s "$dlls" "$root/prefix/drive_c/windows/system32"
	echo disable >"$root/prefix/.update-timestamp"
	# The service manager starts this driver, which interfaces and addresses are asked of.
	cat >"$root/prefix/system.reg" <<-'END'
		WINE REGISTRY Version 2
		#arch=win64

		[System\\CurrentControlSet\\Services\\NsiProxy]
		"ErrorControl"=dword:00000001
		"ImagePath"="C:\\windows\\system32\\nsiproxy.sys"
		"ObjectName"="LocalSystem"
		"Start"=dword:00000002
		"Type"=dword:00000001
	END
	shift
	export HOME=/tmp WINEPREFIX=/prefix WINESERVER=/usr/lib/wine/wineserver64 WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml='
	export WINEPATH='Z:\usr\x86_64-w64-mingw32\lib' # zlib1.dll
	exec unshare --root="$root" --wd="$directory" /usr/lib/wine/wine64 "$@"
}

# overlay writes Go's own file, but for that one error.
overlay() {
	local from to=$cache/fd_windows.go
	from=$(go env GOROOT)/src/net/fd_windows.go
	awk '/SIO_UDP_NETRESET/ { found = 1 }
		found && sub(/if err != nil {/, "if err != nil \\&\\& err != syscall.Errno(10045) {") { found = 0; changed = 1 }
		{ print }
		END { exit !changed }' "$from" >"$to.$$" || die "$from does not set SIO_UDP_NETRESET as it did"
	mv "$to.$$" "$to"
	printf '{"Replace": {"%s": "%s"}}\n' "$from" "$to" >"$cache/overlay.json"
	echo "$cache/overlay.json"
}

if [ "${1:-}" = --overlay ]; then
	overlay
	exit
fi
if [ "${1:-}" = --inside ]; then
	shift
	inside "$@"
fi
[ $# -gt 0 ] || die "usage: scripts/wine.sh PROGRAM.exe [ARGUMENT...]"
mkdir -p "$cache/mnt"
exec 9>"$cache/lock"
flock 9
download
exec 9>&-
program=$(realpath "$1")
shift
user=()
[ "$(id -u)" = 0 ] || user=(--map-root-user)
unshare "${user[@]}" --mount --pid --fork --kill-child -- \
	timeout "${WINE_TIMEOUT:-10m}" bash "$repository/scripts/wine.sh" --inside "$PWD" "$program" "$@" <&0 &
trap "kill -KILL $!" TERM INT QUIT # unshare itself ignores them
wait $!
