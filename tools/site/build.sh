#!/usr/bin/env bash
# Makes a site of docs/, and of the page of all commands in bin/man, in bin/site. A link to a page, a heading or a file that is not there fails.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$root/.cache/site
command -v npm >/dev/null || { echo "the site needs npm: apt-get install npm" >&2; exit 1; }
mkdir -p "$work/.vitepress"
work=$(cd -P "$work" && pwd)
cp "$root"/tools/site/package*.json "$work/"
[ -d "$work/node_modules/vitepress" ] || (cd "$work" && npm ci --no-audit --no-fund)
rm -rf "$work/pages"
cp -r "$root/docs" "$work/pages"
cp "$root/bin/man/commands.md" "$work/pages/"
for page in $(find "$work/pages" -name README.md); do mv "$page" "$(dirname "$page")/index.md"; done
cp "$root/tools/site/config.mjs" "$work/.vitepress/config.mjs"
cd "$work"
SITE_PAGES="$work/pages" SITE_ORIGIN="$root" SITE_OUT="$root/bin/site" npx vitepress build .
