#!/usr/bin/env bash
# Runs the conformance suite of a dataplane in another kernel than this machine's: that of Debian's cloud images, in
# an emulated PC (QEMU without KVM, so that it works inside of virtual machines and containers too).
#
# That kernel is old (Linux 6.1 in Debian 12), and has SCTP, which many others lack. So this is where it shows that the
# dataplane needs nothing newer, and that SCTP services serve SCTP connections. It has IPVS, too.
#
# usage: [DATAPLANE=nftables|ebpf|ipvs] kernel-test.sh [TEST FLAG...]   for example: kernel-test.sh -test.run TestConformance/stories/sctp
#
# ARCH=arm64 and ARCH=s390x emulate a machine of that architecture. The kernel and all programs in it are Debian's for it. s390x is big-endian.
#
# RUN=units runs there what qemu-user cannot run: the tests of the packages that talk to the kernel.
# RUN=proof injects faults there (test/cmd/proof) under a load that fits an emulated machine, and judges the outcome of connections alone.
# RUN=upgrade goes there from the last release to this version and back, under that load.
# RUN=mutants runs programs with injected bugs, which the same scenarios must notice.
# RUN=differential compares the fate of packets with that in upstream kube-proxy, in the same mode, after make upstream.
# RUN=compare measures both, in the same mode, after make upstream.
# RUN=connections opens 10,000 connections through mode userspace and through HAProxy there, whose memory does not depend on how fast the machine is.
#
# The exit status is that of the tests. Downloads are kept in .cache/kernel-test; delete it to get newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${ARCH:-amd64}
cache=$PWD/.cache/kernel-test
[ "$arch" = amd64 ] || cache=$cache-$arch
# Where packages of this machine's architecture are unpacked.
host=$cache/unpacked
[ "$arch" = amd64 ] || host=$cache/host
dataplane=${DATAPLANE:-nftables}
what=${RUN:-conformance}
# What faults are injected: those that concern what a dataplane keeps in the kernel.
scenarios="peace,restart,kill,rolling update,flush on an older kernel,upgrade,switch"
# The longest time that the machine may run, in seconds, and that of the tests in it. Emulation takes about ten times as long.
machine_time=2700
test_time=40m

# What differs by architecture: the emulator with its package and its machine, the console, and the kernel with its name of the architecture.
case $arch in
amd64) emulator=qemu-system-x86_64 emulator_package=qemu-system-x86 machine=pc console=ttyS0 kernel=cloud-amd64 kernel_arch=x86 ;;
arm64) emulator=qemu-system-aarch64 emulator_package=qemu-system-arm machine=virt console=ttyAMA0 kernel=cloud-arm64 kernel_arch=arm64 ;;
s390x) emulator=qemu-system-s390x emulator_package=qemu-system-misc machine=s390-ccw-virtio console=ttysclp0 kernel=s390x kernel_arch=s390 ;;
*)
	echo "kernel-test: ARCH=$arch: use amd64, arm64 or s390x" >&2
	exit 1
	;;
esac
# The modules that are loaded before the tests if loading takes long.
modules_first="veth bridge dummy nf_tables nf_conntrack nf_conntrack_netlink nft_ct nft_nat nft_chain_nat nft_masq nft_redir nft_numgen nft_hash
	nft_reject_inet nft_fib_inet nft_log nft_limit nft_quota nft_socket nft_compat ip_set_hash_ipport ip_vs ip_vs_rr ip_tables ip6_tables
	iptable_nat ip6table_nat iptable_filter ip6table_filter iptable_mangle ip6table_mangle"
# What RUN=units runs. Their tests that need the source tree are left out: qemu-user runs those.
units=${UNITS:-./kernel/conntrack ./internal/kernel/... ./internal/ebpf/... ./internal/edge/... ./backend/ebpf ./backend/iptables ./backend/ipvs ./backend/nftables ./backend/userspace}

die() { echo "kernel-test: $*" >&2; exit 1; }

# install_tools installs what is missing of the programs that the script runs on this machine.
install_tools() {
	local pair missing=()
	for pair in "$emulator:$emulator_package" nft:nftables modprobe:kmod; do
		command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "not installed: ${missing[*]}. As root: apt-get install ${missing[*]}"
	echo "== install ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
		die "apt-get could not install ${missing[*]}"
}

# foreign_apt runs a program of apt for the machine's architecture. Its lists are in the cache, so that this machine's stay as they are.
foreign_apt() { APT_CONFIG=$cache/apt/conf "$@"; }

foreign_lists() {
	local dir=$cache/apt
	mkdir -p "$dir"/{lists,archives}/partial
	touch "$dir/status"
	cat >"$dir/conf" <<-END
		Dir::State "$dir";
		Dir::State::lists "$dir/lists";
		Dir::State::status "$dir/status";
		Dir::Cache "$dir";
		APT::Architecture "$arch";
		APT::Architectures { "$arch"; };
	END
	foreign_apt apt-get update -qq
}

# unpack unpacks packages of apt into a directory: unpack DIRECTORY foreign_apt|env PACKAGE...
unpack() {
	local to=$1 run=$2 deb
	shift 2
	echo "== download $*"
	rm -rf "$cache/debs"
	mkdir -p "$to" "$cache/debs"
	(cd "$cache/debs" && "$run" apt-get download -qq "$@" 2>&1 | sed '/unsandboxed/d')
	for deb in "$cache"/debs/*.deb; do dpkg-deb -x "$deb" "$to"; done
	rm -r "$cache/debs"
}

# download unpacks the kernel and a static busybox into the cache, and for another architecture all programs. Nothing is installed.
download() {
	[ ! -e "$cache/complete" ] || [ ! -e "$host/bin/busybox" ] || return 0 # an old cache has no busybox there
	local image run=env
	rm -rf "$cache"
	mkdir -p "$cache"
	if [ "$arch" != amd64 ]; then
		run=foreign_apt
		foreign_lists
	fi
	image() { $run apt-cache depends "linux-image-$kernel" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p'; }
	image=$(image)
	if [ -z "$image" ] && [ "$(id -u)" = 0 ]; then # a machine without package lists
		apt-get update -qq
		image=$(image)
	fi
	[ -n "$image" ] || die "apt knows no package linux-image-$kernel. Run apt-get update, on Debian"
	unpack "$cache/unpacked" $run "$image" busybox-static
	if [ "$arch" != amd64 ]; then
		unpack "$host" env busybox-static
		unpack "$cache/programs" $run $($run apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
			--no-enhances nftables kmod iptables ipset netbase | grep '^[a-z0-9]')
		rm -rf "$cache/programs/usr/share"
	fi
	touch "$cache/complete"
}

# needs_iptables tells whether mode iptables or kube-proxy runs in the machine.
needs_iptables() { [ "$what" != conformance ] || [ "$dataplane" = iptables ]; }

# copy_host_programs copies the programs of this machine.
copy_host_programs() {
	local root=$1 file from to programs
	# The kernel calls /sbin/modprobe when it needs a module. That of busybox will not do: if the module is just being loaded
	# for somebody else, it does not wait.
	programs="$(command -v nft) /sbin/modprobe"
	if needs_iptables; then
		programs="$programs $(for file in iptables ip6tables; do for from in legacy nft; do
			for to in '' -save -restore; do command -v "$file-$from$to"; done; done; done) $(command -v ipset)"
	fi
	[ "$what" != connections ] || programs="$programs $(command -v haproxy)"
	for file in $programs $(ldd $programs | grep -o '/lib[^ ]*' | sort -u); do
		cp -L --parents "$file" "$root"
	done
	if needs_iptables; then
		from=$(echo /usr/lib/*/xtables)
		cp -rL --parents "$from" "$root"
		for file in "$from"/*.so; do
			for to in $(ldd "$file" | grep -o '/lib[^ ]*'); do [ -e "$root/$to" ] || cp -L --parents "$to" "$root"; done
		done
		cp --parents /etc/protocols "$root" # ipset reads the names of protocols there
	fi
}

# build_units compiles each package's tests into a directory with its test data, and writes the program that runs them all.
build_units() {
	local root=$1 pkg dir
	for pkg in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' $units); do
		dir=$root/units/${pkg#"$PWD/"}
		mkdir -p "$dir"
		[ ! -d "$pkg/testdata" ] || cp -r "$pkg/testdata" "$dir"
		go test -c -o "$dir/test" "$pkg"
	done
	cat >"$root/test" <<-'END'
		#!/bin/sh
		status=0
		for test in $(find /units -name test | sort); do
			cd "${test%/test}" || exit
			echo "== $PWD"
			./test "$@" || status=1
		done
		exit $status
	END
	chmod +x "$root/test"
}

# build_initramfs makes the file system of the machine: busybox, the modules for networking, modprobe, nft and the tests.
build_initramfs() {
	local root=$cache/root modules from to file
	rm -rf "$root"
	mkdir -p "$root"/{bin,proc,sys,dev,tmp}
	cp "$cache/unpacked/bin/busybox" "$root/bin"

	modules=lib/modules/$release
	for file in net lib crypto "arch/$kernel_arch/crypto" drivers/net; do
		from=$cache/unpacked/$modules/kernel/$file to=$root/$modules/kernel/$file
		[ -d "$from" ] || continue
		mkdir -p "$to"
		cp -r "$from/." "$to"
	done
	cp "$cache/unpacked/$modules"/modules.builtin* "$root/$modules"
	depmod -b "$root" "$release"

	if [ "$arch" = amd64 ]; then copy_host_programs "$root"; else cp -a "$cache/programs/." "$root"; fi
	mkdir -p "$root/run"
	for file in iptables ip6tables; do
		for to in '' -save -restore; do
			[ ! -e "$root/usr/sbin/$file-legacy$to" ] || ln -sf "$file-legacy$to" "$root/usr/sbin/$file$to"
		done
	done

	case $what in
	conformance)
		go test -c -o "$root/test" "./backend/$dataplane"
		;;
	units)
		build_units "$root"
		;;
	proof | mutants)
		go build -trimpath -ldflags '-s -w' -o "$root/test" ./test/cmd/proof
		"$root/test" -build "$root/programs" -dataplane "$dataplane" -scenarios "$scenarios" -mutants="$([ "$what" = mutants ] && echo true || echo false)"
		;;
	upgrade)
		go build -trimpath -ldflags '-s -w' -o "$root/test" ./test/cmd/proof
		from=$(go run ./test/cmd/upgrade program)
		cp "$from" "$root/release"
		"$root/test" -build "$root/programs" -dataplane "$dataplane" -scenarios release -release "$from"
		;;
	differential)
		(cd test/e2e && go test -c -o "$root/test" .)
		cp -L .cache/upstream/upstream "$root/upstream"
		;;
	compare)
		(cd test/e2e && go build -trimpath -ldflags '-s -w' -o "$root/test" ./compare)
		go build -trimpath -ldflags '-s -w' -o "$root/switchyard" ./cmd/switchyard
		cp -L .cache/upstream/upstream "$root/upstream"
		;;
	connections)
		go build -trimpath -ldflags '-s -w' -o "$root/test" ./test/cmd/bench
		;;
	esac
	printf '%s\n' "$@" >"$root/arguments"
	# A machine of another architecture takes so long to load modules that the first story would fail for its timeouts.
	[ "$arch" = amd64 ] || echo $modules_first >"$root/modules"
	cp scripts/kernel-test-init.sh "$root/init"
	chmod +x "$root/init"
	(cd "$root" && find . | "$host/bin/busybox" cpio -o -H newc 2>/dev/null) >"$cache/initramfs"
}

# run starts the machine and shows what it prints.
run() {
	local cpus
	cpus=$(nproc)
	timeout --foreground "$machine_time" "$emulator" -machine "$machine" -accel tcg,thread=multi -cpu max -m 3072 -smp "$((cpus < 4 ? cpus : 4))" \
		-nodefaults -no-user-config -no-reboot -display none -serial stdio \
		-kernel "$cache/unpacked/boot/vmlinuz-$release" -initrd "$cache/initramfs" \
		-append "console=$console quiet panic=-1 mitigations=off nokaslr" </dev/null | tee "$cache/log"
}

[ "$(uname -m)" = x86_64 ] || die "this machine must be an x86-64 PC, not $(uname -m)"
export GOOS=linux GOARCH=$arch CGO_ENABLED=0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "needs Debian or Ubuntu: kernel and tools come from their packages"
case $arch/$what in
amd64/* | */conformance | */units) ;;
*) die "RUN=$what: its programs run on this machine too. Leave ARCH out" ;;
esac
install_tools
download
release=$(ls "$cache/unpacked/lib/modules")
if [ "$arch" = amd64 ] && needs_iptables; then
	for file in iptables ipset; do
		command -v "$file" >/dev/null || die "not installed: $file. As root: apt-get install $file"
	done
	[ -e /etc/protocols ] || die "no /etc/protocols. As root: apt-get install netbase"
fi
case $what in
conformance)
	# Another architecture is emulated more slowly: no random histories, no story of thousands of connections, and none that wants an answer in 900 ms.
	[ $# -gt 0 ] || [ "$arch" = amd64 ] || set -- -test.run '^TestConformance$' -test.skip '/random/|/stories/(unknown_value|distribution|refused)$'
	# Sixteen random histories are for fast machines. The story unknown_value is about messages, which a dataplane in the test's own process
	# does not get.
	[ $# -gt 0 ] || set -- -test.run '^TestConformance$' -test.skip '/random/seed-([3-9]|1.)$|/stories/unknown_value'
	# One story at a time: several at once make each other so slow that time-outs of the stories pass in the middle of a check.
	set -- -test.v -test.parallel=1 "-test.timeout=$test_time" "$@"
	;;
units)
	# What compares with files of the source tree runs elsewhere, and so does the suite.
	[ $# -gt 0 ] || set -- -test.skip '^Test(Conformance|SourcesAreCompiled|EveryArchitectureHasPrograms)$'
	set -- -test.v -test.parallel=1 "-test.timeout=$test_time" "$@"
	;;
proof)
	[ $# -gt 0 ] || set -- -programs /programs -dataplane "$dataplane" -scenarios "$scenarios" -scale 0.02 -rate 36 -counts-only
	;;
upgrade)
	[ $# -gt 0 ] || set -- -programs /programs -release /release -dataplane "$dataplane" -scenarios release -scale 0.25 -rate 36 -counts-only
	;;
mutants)
	# Fewer connections than in proof: it takes so long between two requests on an open one that flows which were cut are distinguished from others.
	[ $# -gt 0 ] || set -- -programs /programs -dataplane "$dataplane" -mutants -scale 0.02 -rate 24 -counts-only
	;;
differential | compare)
	[ -x .cache/upstream/upstream ] || die "kube-proxy is not built: make upstream"
	[ $# -gt 0 ] || [ "$what" = differential ] || set -- -mode "$dataplane" -sizes 10,1000 -slow-changes 6 -attempt 500ms -switchyard /switchyard -out /tmp
	[ $# -gt 0 ] || set -- -test.v -test.run 'TestDifferential$' -test.parallel=1 "-test.timeout=$test_time" -seeds "${SEEDS:-2}" -settle 3m -dataplane "$dataplane"
	;;
connections)
	command -v haproxy >/dev/null || die "not installed: haproxy. As root: apt-get install haproxy"
	[ $# -gt 0 ] || set -- userspace --connections 10000 --rounds 1
	;;
*) die "RUN=$what: use conformance, units, proof, upgrade, mutants, differential, compare or connections" ;;
esac
build_initramfs "$@"
echo "== run in Linux $release, emulated"
started=$SECONDS
run || die "the machine was stopped after $machine_time seconds"
echo "== $((SECONDS - started)) seconds"
status=$(sed -n 's/^kernel-test: exit status \([0-9]*\).*/\1/p' "$cache/log")
[ -n "$status" ] || die "the machine stopped before the tests ended"
# All that the suite can check is to be checked here.
if [ "$what" != units ] && grep -q -- '--- SKIP' "$cache/log"; then die "these were skipped: $(grep -o -- '--- SKIP[^(]*' "$cache/log" | tr '\n' ' ')"; fi
exit "$status"
