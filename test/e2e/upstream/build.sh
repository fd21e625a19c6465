#!/bin/sh
# Builds etcd, Kubernetes' control plane, kubelet and kube-proxy, as one program, into .cache/upstream of the repository.
# It is built again only when the versions or the program change. The first time takes about 8 minutes on two CPUs, and 5 GB of
# Go's build cache. With KUBERNETES=1.36.3 it is that release, whose own go.mod decides about all other modules.
set -eu
cd "$(dirname "$0")"
cache=$PWD/../../../.cache/upstream
go=${GO:-go}
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
if [ -n "${KUBERNETES:-}" ]; then
	version=v${KUBERNETES#v}
	name=upstream-$version
	if [ ! -x "$cache/$name" ]; then
		mkdir -p "$cache/$version"
		cp main.go "$cache/$version"
		cd "$cache/$version"
		mod=$($go mod download -json "k8s.io/kubernetes@$version" | awk -F '"' '$2 == "GoMod" { print $4 }')
		[ -n "$mod" ] || { echo "there is no Kubernetes $version: use a release such as 1.36.3" >&2; exit 1; }
		rm -f go.mod go.sum
		printf 'module upstream\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n' "$version" >go.mod
		$go mod edit $(awk -v v="v0.${version#v1.}" '$2 == "=>" && $3 ~ /^\.\/staging\// { print "-replace=" $1 "=" $1 "@" v }' "$mod")
		$go mod tidy
	fi
else
	name=upstream-$(cat go.mod go.sum main.go | sha256sum | cut -c1-16)
fi
if [ ! -x "$cache/$name" ]; then
	echo "== build etcd and Kubernetes $version (about 8 minutes, once)"
	mkdir -p "$cache"
	CGO_ENABLED=0 "$go" build -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$cache/$name.new" .
	mv "$cache/$name.new" "$cache/$name"
fi
[ -n "${KUBERNETES:-}" ] || ln -sf "$name" "$cache/upstream"
