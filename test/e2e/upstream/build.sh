#!/bin/sh
# Builds etcd, kube-apiserver, kube-controller-manager and kube-proxy, as one program, into .cache/upstream of the repository.
# It is built again only when the versions or the program change. The first time takes about 8 minutes on two CPUs, and 5 GB of
# Go's build cache.
set -eu
cd "$(dirname "$0")"
cache=../../../.cache/upstream
name=upstream-$(cat go.mod go.sum main.go | sha256sum | cut -c1-16)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
if [ ! -x "$cache/$name" ]; then
	echo "== build etcd and Kubernetes $version (about 8 minutes, once)"
	mkdir -p "$cache"
	CGO_ENABLED=0 "${GO:-go}" build -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$cache/$name.new" .
	mv "$cache/$name.new" "$cache/$name"
fi
ln -sf "$name" "$cache/upstream"
