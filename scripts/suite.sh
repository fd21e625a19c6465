#!/bin/sh
# Runs the conformance suite through the program of one dataplane: suite.sh DATAPLANE [FLAG...]. Flags are those of 'switchyard conformance'.
set -e
dataplane=$1
shift
program=bin/switchyard-$dataplane
case "$dataplane" in
nftables | ipvs) set -- "$@" -- "$program" --api {target} ;;
ebpf) set -- "$@" --limit HairpinSourceKept -- "$program" --api {target} --namespace-map {namespaces} ;;
iptables) set -- "$@" --shares-tables -- "$program" --api {target} --variant nft ;;
# A relay hands its connections over to the next process. So the next one starts while this one drains, as with maxSurge in a DaemonSet.
# Its output goes to a file: the suite would wait for the end of a pipe.
userspace) set -- "$@" --limit ClientSourceLost,EndpointRefusalLost -- \
	sh -c '"$0" --api "$1" --drain-timeout 5s >>bin/suite-userspace.log 2>&1 & trap "kill $!; exit" TERM; wait' "$program" {target} ;;
*)
	echo "DATAPLANE=$dataplane: must be nftables, ebpf, ipvs, iptables or userspace" >&2
	exit 1
	;;
esac
exec bin/switchyard conformance "$@"
