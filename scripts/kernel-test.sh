#!/usr/bin/env bash
# Runs the conformance suite of a dataplane in another kernel than this machine's: that of Debian's cloud images, in
# an emulated PC (QEMU without KVM, so that it works inside of virtual machines and containers too).
#
# That kernel is old (Linux 6.1 in Debian 12), and has SCTP, which many others lack. So this is where it shows that the
# dataplane needs nothing newer, and that SCTP services serve SCTP connections. It has IPVS, too.
#
# usage: [DATAPLANE=nftables|ebpf|ipvs] kernel-test.sh [TEST FLAG...]   for example: kernel-test.sh -test.run TestConformance/stories/sctp
#
# RUN=proof injects faults there (test/cmd/proof) under a load that fits an emulated machine, and judges the outcome of connections alone.
# RUN=mutants runs programs with injected bugs, which the same scenarios must notice.
# RUN=differential compares the fate of packets with that in upstream kube-proxy, in the same mode, after make upstream.
# RUN=compare measures both, in the same mode, after make upstream.
# RUN=connections opens 10,000 connections through mode userspace and through HAProxy there, whose memory does not depend on how fast the machine is.
#
# The exit status is that of the tests. Downloads are kept in .cache/kernel-test; delete it to get newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=.cache/kernel-test
dataplane=${DATAPLANE:-nftables}
what=${RUN:-conformance}
# What faults are injected: those that concern what a dataplane keeps in the kernel.
scenarios="peace,restart,kill,rolling update,flush on an older kernel,upgrade,switch"
# The longest time that the machine may run, in seconds, and that of the tests in it. Emulation takes about ten times as long.
machine_time=2700
test_time=40m

die() { echo "kernel-test: $*" >&2; exit 1; }

# install_tools installs what is missing of the programs that the script runs on this machine.
install_tools() {
	local pair missing=()
	for pair in qemu-system-x86_64:qemu-system-x86 nft:nftables modprobe:kmod; do
		command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "not installed: ${missing[*]}. As root: apt-get install ${missing[*]}"
	echo "== install ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
		die "apt-get could not install ${missing[*]}"
}

# download unpacks the kernel and a static busybox into the cache. Neither is installed.
download() {
	[ ! -e "$cache/complete" ] || return 0
	local image
	image=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
	if [ -z "$image" ] && [ "$(id -u)" = 0 ]; then # a machine without package lists
		apt-get update -qq
		image=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
	fi
	[ -n "$image" ] || die "apt knows no package linux-image-cloud-amd64. Run apt-get update, on Debian"
	echo "== download $image and busybox-static"
	rm -rf "$cache"
	mkdir -p "$cache/unpacked"
	(cd "$cache" && apt-get download -qq "$image" busybox-static 2>&1 | sed '/unsandboxed/d')
	local deb
	for deb in "$cache"/*.deb; do dpkg-deb -x "$deb" "$cache/unpacked"; done
	rm "$cache"/*.deb
	touch "$cache/complete"
}

# build_initramfs makes the file system of the machine: busybox, the modules for networking, modprobe, nft and the tests.
build_initramfs() {
	local root=$cache/root modules from to file programs
	rm -rf "$root"
	mkdir -p "$root"/{bin,proc,sys,dev,tmp}
	cp "$cache/unpacked/bin/busybox" "$root/bin"

	modules=lib/modules/$release
	for file in net lib crypto arch/x86/crypto drivers/net; do
		from=$cache/unpacked/$modules/kernel/$file to=$root/$modules/kernel/$file
		mkdir -p "$to"
		cp -r "$from/." "$to"
	done
	cp "$cache/unpacked/$modules"/modules.builtin* "$root/$modules"
	depmod -b "$root" "$release"

	# The kernel calls /sbin/modprobe when it needs a module. That of busybox will not do: if the module is just being loaded
	# for somebody else, it does not wait.
	programs="$(command -v nft) /sbin/modprobe"
	if [ "$what" != conformance ]; then # for mode iptables, and for kube-proxy
		programs="$programs $(for file in iptables ip6tables; do for from in legacy nft; do
			for to in '' -save -restore; do command -v "$file-$from$to"; done; done; done) $(command -v ipset)"
	fi
	[ "$what" != connections ] || programs="$programs $(command -v haproxy)"
	for file in $programs $(ldd $programs | grep -o '/lib[^ ]*' | sort -u); do
		cp -L --parents "$file" "$root"
	done
	if [ "$what" != conformance ]; then
		from=$(echo /usr/lib/*/xtables)
		cp -rL --parents "$from" "$root"
		for file in "$from"/*.so; do
			for to in $(ldd "$file" | grep -o '/lib[^ ]*'); do [ -e "$root/$to" ] || cp -L --parents "$to" "$root"; done
		done
		mkdir -p "$root/run"
		cp --parents /etc/protocols "$root" # ipset reads the names of protocols there
		for file in iptables ip6tables; do
			for to in '' -save -restore; do ln -s "$file-legacy$to" "$root/usr/sbin/$file$to"; done
		done
	fi

	case $what in
	conformance)
		CGO_ENABLED=0 go test -c -o "$root/test" "./backend/$dataplane"
		;;
	proof | mutants)
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/test" ./test/cmd/proof
		"$root/test" -build "$PWD/$root/programs" -dataplane "$dataplane" -scenarios "$scenarios" -mutants="$([ "$what" = mutants ] && echo true || echo false)"
		;;
	differential)
		(cd test/e2e && CGO_ENABLED=0 go test -c -o "../../$root/test" .)
		cp -L .cache/upstream/upstream "$root/upstream"
		;;
	compare)
		(cd test/e2e && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "../../$root/test" ./compare)
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/switchyard" ./cmd/switchyard
		cp -L .cache/upstream/upstream "$root/upstream"
		;;
	connections)
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/test" ./test/cmd/bench
		;;
	esac
	printf '%s\n' "$@" >"$root/arguments"
	cp scripts/kernel-test-init.sh "$root/init"
	chmod +x "$root/init"
	(cd "$root" && find . | ../unpacked/bin/busybox cpio -o -H newc 2>/dev/null) >"$cache/initramfs"
}

# run starts the machine and shows what it prints.
run() {
	local cpus
	cpus=$(nproc)
	timeout --foreground "$machine_time" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 3072 -smp "$((cpus < 4 ? cpus : 4))" \
		-nodefaults -no-user-config -no-reboot -display none -serial stdio \
		-kernel "$cache/unpacked/boot/vmlinuz-$release" -initrd "$cache/initramfs" \
		-append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr" </dev/null | tee "$cache/log"
}

[ "$(uname -m)" = x86_64 ] || die "the machine is an x86-64 PC; $(uname -m) cannot build its tests"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "needs Debian or Ubuntu: kernel and tools come from their packages"
install_tools
download
release=$(ls "$cache/unpacked/lib/modules")
for file in iptables ipset; do
	[ "$what" = conformance ] || command -v "$file" >/dev/null || die "not installed: $file. As root: apt-get install $file"
done
[ "$what" = conformance ] || [ -e /etc/protocols ] || die "no /etc/protocols. As root: apt-get install netbase"
case $what in
conformance)
	# Sixteen random histories are for fast machines. The story unknown_value is about messages, which a dataplane in the test's own process
	# does not get.
	[ $# -gt 0 ] || set -- -test.run '^TestConformance$' -test.skip '/random/seed-([3-9]|1.)$|/stories/unknown_value'
	# One story at a time: several at once make each other so slow that time-outs of the stories pass in the middle of a check.
	set -- -test.v -test.parallel=1 "-test.timeout=$test_time" "$@"
	;;
proof)
	[ $# -gt 0 ] || set -- -programs /programs -dataplane "$dataplane" -scenarios "$scenarios" -scale 0.02 -rate 36 -counts-only
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
*) die "RUN=$what: use conformance, proof, mutants, differential, compare or connections" ;;
esac
build_initramfs "$@"
echo "== run in Linux $release, emulated"
started=$SECONDS
run || die "the machine was stopped after $machine_time seconds"
echo "== $((SECONDS - started)) seconds"
status=$(sed -n 's/^kernel-test: exit status \([0-9]*\).*/\1/p' "$cache/log")
[ -n "$status" ] || die "the machine stopped before the tests ended"
# All that the suite can check is to be checked here.
if grep -q -- '--- SKIP' "$cache/log"; then die "these were skipped: $(grep -o -- '--- SKIP[^(]*' "$cache/log" | tr '\n' ' ')"; fi
exit "$status"
