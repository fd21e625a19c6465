// Tests the page in a browser. It is in a module of its own: its needs are not ours.
module github.com/switchyard-net/switchyard/test/ui

go 1.26.0

require (
	github.com/chromedp/cdproto v0.0.0-20250724212937-08a3db8b4327
	github.com/chromedp/chromedp v0.14.2
	github.com/switchyard-net/switchyard v0.0.0
)

require (
	github.com/chromedp/sysutil v1.1.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20250725192818-e39067aee2d2 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
	github.com/gobwas/ws v1.4.0 // indirect
	github.com/switchyard-net/switchyard/client v0.1.0 // indirect
	github.com/tidwall/btree v1.8.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace (
	github.com/switchyard-net/switchyard => ../..
	github.com/switchyard-net/switchyard/client => ../../client
)
