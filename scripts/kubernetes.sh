#!/bin/sh
# Moves the comparison with upstream to another release of Kubernetes: scripts/kubernetes.sh 1.37.2
# test/e2e/upstream/go.mod is the one place that names the release. This writes what follows from it: the versions of Kubernetes'
# modules there and in test/windows/upstream.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
new=${1#v}
old=$(awk '$1 == "k8s.io/kubernetes" { print substr($2, 2); exit }' test/e2e/upstream/go.mod)
case $new in
1.*.*) ;;
*) echo "usage: $0 VERSION, such as 1.37.2" >&2; exit 1 ;;
esac
echo "== Kubernetes $old to $new"
# Kubernetes' own modules are released together. Its go.mod replaces them by directories, which only its repository has.
mod=$($go mod download -json "k8s.io/kubernetes@v$new" | awk -F '"' '$2 == "GoMod" { print $4 }')
for module in test/e2e/upstream test/windows/upstream; do
	(
		cd "$module"
		sed -i "/k8s\.io\//s/v0\.${old#1.}\b/v0.${new#1.}/; /k8s\.io\/kubernetes /s/v$old\b/v$new/" go.mod
		$go mod edit $(awk -v v="v0.${new#1.}" '$2 == "=>" && $3 ~ /^\.\/staging\// { print "-replace=" $1 "=" $1 "@" v }' "$mod")
		$go mod tidy
	)
done
