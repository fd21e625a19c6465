#!/bin/busybox sh
# The first process of the machine that kernel-test.sh starts: it runs the tests and turns the machine off.
/bin/busybox --install -s /bin
rm /bin/modprobe
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp SWITCHYARD_UPSTREAM=/upstream
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
stty -onlcr
ip link set lo up

# Everything else that the dataplane needs is loaded by the kernel on its own, as on a node.
modprobe sctp
[ ! -e /modules ] || for module in $(cat /modules); do modprobe "$module"; done
set --
while IFS= read -r argument; do set -- "$@" "$argument"; done </arguments
echo "Linux $(uname -r), $(nproc) CPUs, clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource), up $(cut -d' ' -f1 /proc/uptime) s"
cd /tmp && /test "$@"
echo "kernel-test: exit status $?"
poweroff -f
