#!/usr/bin/env bash
# Brings the manifests of public repositories that cmd/internal/labcmd/testdata/public/list names to where
# TestPublicManifests reads them: DIR/OWNER/NAME has a checkout at the commit of the list.
#
# usage: public-manifests.sh DIR && SWITCHYARD_MANIFESTS=DIR go test -run TestPublicManifests ./cmd/internal/labcmd
set -euo pipefail
list=$(dirname "$0")/../cmd/internal/labcmd/testdata/public/list
dir=$1

cut -d' ' -f1,3 "$list" | sort -u | while read -r repository commit; do
	git -C "$dir/$repository" cat-file -e "$commit" 2>/dev/null && continue
	mkdir -p "$dir/$repository"
	git -C "$dir/$repository" init -q
	git -C "$dir/$repository" fetch -q --depth=1 "https://github.com/$repository.git" "$commit"
	git -C "$dir/$repository" checkout -q FETCH_HEAD
done
