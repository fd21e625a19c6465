package ui

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/await"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page; default: none are taken")

// browser is a page in Chromium. Each of its complaints, and each request to another place, fails the test.
type browser struct {
	*testing.T
	ctx     context.Context
	address string

	mu         sync.Mutex // guards all below
	complaints []string
	forgiven   bool // the server is to be away
}

// open shows the page of a server. Without Chromium, the test is skipped, but not in continuous integration.
func open(t *testing.T, address string, actions ...chromedp.Action) *browser {
	t.Helper()
	if !slices.ContainsFunc([]string{"chromium", "chromium-browser", "google-chrome"}, func(name string) bool {
		_, err := exec.LookPath(name)
		return err == nil
	}) {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no Chromium; install the package chromium")
		}
		t.Skip("there is no Chromium; install the package chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.Flag("host-resolver-rules", "MAP rebound.example 127.0.0.1"), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has none for root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // events that its version does not know
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx, address: address}
	chromedp.ListenTarget(ctx, b.watch)
	t.Cleanup(b.check)
	b.run(append([]chromedp.Action{log.Enable(), network.Enable(), chromedp.EmulateViewport(1280, 800)}, actions...)...)
	b.run(chromedp.Navigate("http://" + address + "/"))
	return b
}

func (b *browser) watch(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	complain := func(format string, args ...any) {
		if !b.forgiven {
			b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
		}
	}
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		complain("exception: %v", ev.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		for _, arg := range ev.Args {
			complain("console: %s %s%s", ev.Type, arg.Value, arg.Description)
		}
	case *log.EventEntryAdded:
		complain("log: %s %s %s", ev.Entry.Level, ev.Entry.Text, ev.Entry.URL)
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(ev.Request.URL); err != nil || u.Host != b.address && u.Scheme != "data" {
			complain("request to %s", ev.Request.URL)
		}
	}
}

// check fails the test for what the browser complained of.
func (b *browser) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.Error(c)
	}
	b.complaints = nil
}

func (b *browser) forgive(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgiven = yes
}

func (b *browser) run(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// sees waits until the element has the text.
func (b *browser) sees(selector, text string) {
	b.Helper()
	b.holds(fmt.Sprintf("%s shows %q", selector, text), fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.checkVisibility() && (e.innerText ?? e.textContent).includes(%q))", selector, text))
}

// holds waits until an expression is true. One that throws is not true yet: rows are drawn a frame after they are counted, and
// an element that is not there has no properties.
func (b *browser) holds(what, expression string) {
	b.Helper()
	var ok bool
	guarded := "(() => { try { return " + expression + "; } catch { return false; } })()"
	if err := chromedp.Run(b.ctx, chromedp.Poll(guarded, &ok, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		if last := chromedp.Run(b.ctx, chromedp.Evaluate(expression, &ok)); last != nil {
			err = last // its exception says more than a timeout
		}
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.Fatalf("it never came to pass that %s: %v\nthe page:\n%s", what, err, text)
	}
}

func (b *browser) value(expression string, to any) {
	b.Helper()
	b.run(chromedp.Evaluate(expression, to))
}

func (b *browser) press(keys string) { b.Helper(); b.run(chromedp.KeyEvent(keys)) }

func (b *browser) picture(name string) {
	b.Helper()
	if *screenshots == "" {
		return
	}
	var png []byte
	b.run(chromedp.Sleep(300*time.Millisecond), chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.Fatal(err)
	}
}

func colours(scheme string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}})
}

// TestPage: a person looks at a node, finds a Service with the keyboard, and asks why.
func TestPage(t *testing.T) {
	y := newYard(t, shop())
	b := open(t, y.serve(""), colours("light"))
	y.busy()
	b.sees("#health", "node-a is healthy")
	b.sees("#health", "edge: 6 ports handed over, 2 left to nftables, 1 frontend draining")
	b.sees("#count", "18 Services")
	b.sees(".row .c5", "no endpoint of the Service is ready")
	b.picture("page-light")

	b.press("/")
	b.holds("the filter has the focus", `document.activeElement.id === "filter"`)
	b.press("storefr")
	b.sees("#count", "1 of 18 Services")
	b.press(kb.Enter)
	b.press(kb.Enter)
	b.sees("#one h2", "shop/storefront")
	b.sees("#one .picture", "this node only")
	b.sees("#one td", "not ready")
	b.sees("#one td", "storefront-6d9f8c6b5d-00001")
	b.sees("#one .endpoint", "-00001 · node-b")
	b.holds("another port can be chosen", `document.querySelectorAll("#one .chips button").length === 2`)
	b.press(kb.Escape)
	b.holds("it is closed", `document.querySelector("#one").hidden`)
	b.press(kb.Escape)
	b.holds("the filter is gone", `document.querySelector("#count").textContent === "18 Services"`)
	b.press(kb.Home)
	b.press("jjk")
	b.holds("the second row is chosen", `document.querySelector("#row-1").matches('[aria-selected="true"]')`)
	b.press("?")
	b.holds("there is help", `document.querySelector("#help").open`)
	b.press(kb.Escape)

	b.run(chromedp.Evaluate(`location.hash = "#/services/shop/storefront"`, nil))
	b.sees("#one h2", "shop/storefront")
	const fits = `[...document.querySelectorAll("#one .endpoint .sub")].every((e) => e.getBBox().x + e.getBBox().width <= e.ownerSVGElement.clientWidth)`
	b.holds("names of pods and nodes fit", fits)
	b.picture("page-service-light")
	b.run(colours("dark"))
	b.picture("page-service-dark")
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), colours("light"))
	b.sees("#one .endpoint", "-00001 · node-b")
	b.holds("names of pods and nodes fit on a phone", fits)
	b.picture("page-service-phone")
	b.run(chromedp.EmulateViewport(1280, 800), chromedp.Evaluate(`location.hash = "#/services"`, nil), colours("dark"))
	b.sees("#count", "18 Services")
	b.picture("page-dark")
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), colours("light"))
	b.holds("nothing is wider than a phone", `document.documentElement.scrollWidth <= innerWidth`)
	b.picture("page-phone")
	b.run(chromedp.EmulateViewport(1280, 800))

	b.run(chromedp.Evaluate(`location.hash = "#/explain"`, nil),
		chromedp.SendKeys(`#ask [name="from"]`, "10.244.0.9"), chromedp.SendKeys(`#ask [name="to"]`, "svc/shop/storefront:http"+kb.Enter))
	b.sees(".verdict", "FORWARDED")
	b.sees(".chain", "node-b")
	b.picture("page-explain")
	b.run(chromedp.Evaluate(`location.hash = "#/explain?from=outside&to=svc/shop/recommendations"`, nil))
	b.sees(".answer .verdict", "REJECTED")
	b.forgive(true) // Chromium logs answers that are errors
	b.run(chromedp.Evaluate(`location.hash = "#/explain?from=node&to=svc/shop/nothing"`, nil))
	b.sees("#answers", "nothing")
	b.forgive(false)

	b.press(kb.Escape)
	b.run(chromedp.Evaluate(`location.hash = "#/changes"`, nil))
	b.sees("#log", "2 objects of the kernel that something else had changed")
	b.sees("#log", "no buffer space available")
	b.sees("#log td", "ms")
	b.sees("#log .change .bad", "-10.244.33.11")
	b.sees("#log .repeats", "×3 since")
	b.run(chromedp.Focus("#log .repeats"))
	b.press(kb.Enter)
	b.holds("repeats are shown", `document.querySelector('#log .repeats[aria-expanded="true"]') === document.activeElement`)
	b.press(kb.Enter)
	b.run(chromedp.Focus(`#log [data-sort="took"]`))
	b.press(kb.Enter)
	b.holds("the longest is first, and the address has the order", `document.querySelector("#log tbody tr").className === "failed" && location.hash === "#/changes?sort=took"`)
	b.run(chromedp.Evaluate(`location.hash = "#/changes"`, nil))
	b.picture("page-changes")
	b.run(colours("dark"))
	b.picture("page-changes-dark")
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), colours("light"))
	b.holds("nothing is wider than a phone", `document.documentElement.scrollWidth <= innerWidth`)
	b.picture("page-changes-phone")
	b.run(chromedp.EmulateViewport(1280, 800))
	b.press("/")
	b.holds("the filter has the focus, from another part of the page", `document.activeElement.id === "filter"`)
}

// TestProblems: the page groups the problems of the process, shows faults first, and shows repeated problems once.
func TestProblems(t *testing.T) {
	y := newYard(t, shop())
	y.problems = []view.Problem{{Part: "services", Message: "b"}, {Part: "api", Message: "a"}, {Part: "services", Message: "b"}, {Part: "dataplane", Message: "c", Fault: true}}
	b := open(t, y.serve(""))
	b.sees("#problems", "dataplane: c")
	b.holds("they are in order", `[...document.querySelectorAll("#problems li")].map((e) => e.textContent).join("|") === "dataplane: c|api: a|services: b (2 times)"`)
}

// TestLive: what changes is on the page a moment later, also what only a row shows.
func TestLive(t *testing.T) {
	y := newYard(t, shop())
	b := open(t, y.serve(""))
	b.sees(`[data-key="shop/cart"] .number`, "6/6")
	cart := service(1, "shop", "cart", tcp("http", 80))
	y.sink.Update([]model.Object{slice(cart, endpoints(1, 1))}, nil)
	b.sees(`[data-key="shop/cart"] .number`, "3/3")
	list := endpoints(1, 1)
	list = append(list, model.Endpoint{Addr: ip("10.244.1.200"), NodeName: "node-a"})
	y.sink.Update([]model.Object{slice(cart, list)}, nil) // of no consequence to a dataplane
	b.sees(`[data-key="shop/cart"] .c5`, "1 not ready")
	canary := slice(cart, endpoints(2, 1)[:1])
	canary.Name, canary.Weight = "cart-canary", "5"
	stable := slice(cart, endpoints(1, 1)[:1])
	stable.Weight = "95"
	y.sink.Update([]model.Object{stable, canary}, nil)
	b.run(chromedp.Evaluate(`location.hash = "#/services/shop/cart"`, nil))
	b.sees("#one [data-table=endpoints]", "5.0%")
	b.holds("the columns of weights are there", `[...document.querySelectorAll("#one [data-table=endpoints] th")].map((e) => e.textContent.trim()).join(" ").includes("Weight Share") && document.querySelector("#one [data-table=endpoints]").textContent.includes("95.0%")`)
	b.run(chromedp.Evaluate(`location.hash = "#/services"`, nil))
	y.sink.Update([]model.Object{service(90, "shop", "a-new-one", tcp("http", 80))}, []model.Ref{cart.Ref()})
	b.sees(`[data-key="shop/a-new-one"]`, "no endpoints")
	b.holds("the Service is gone", `document.querySelector('[data-key="shop/cart"]') === null`)
	evil := service(91, "shop", "x", tcp("http", 80))
	evil.Name.Name = `<img src=x onerror=alert(1)>`
	y.sink.Update([]model.Object{evil}, nil)
	b.sees(".row", "<img src=x")
}

// TestStates: each endpoint of a Service has its state, with the time that is left to its connections.
func TestStates(t *testing.T) {
	cart := service(1, "shop", "cart", tcp("http", 80))
	cart.Annotations = []model.Annotation{{Name: model.DrainAnnotation, Value: "2h"}, {Name: model.EjectAnnotation, Value: "true"}}
	list := endpoints(1, 2)[:4]
	list[2].Ready = false
	list[3].Ready, list[3].Serving = false, false
	y := newYard(t, shop())
	y.sink.Update([]model.Object{cart, slice(cart, list)}, nil)
	port := func(e model.Endpoint) netip.AddrPort { return netip.AddrPortFrom(e.Addr, 8080) }
	y.standing = view.Standing{Silent: []netip.AddrPort{port(list[1])}, Until: map[netip.AddrPort]time.Time{port(list[2]): time.Now().Add(90 * time.Minute)}}
	b := open(t, y.serve(""))
	b.run(chromedp.Evaluate(`location.hash = "#/services/shop/cart"`, nil))
	for i, want := range []string{"active", "ejected", "draining for 1 h", "idle"} {
		b.sees("#one [data-table=endpoints]", want)
		b.holds(want, fmt.Sprintf(`[...document.querySelectorAll("#one [data-table=endpoints] tbody tr")].find((r) => r.textContent.includes("%v")).textContent.includes("%s")`, port(list[i]), want))
	}
}

// TestServerAway: a page whose process ends says so, and goes on when there is one again.
func TestServerAway(t *testing.T) {
	y := newYard(t, shop())
	address := y.serve("")
	b := open(t, address)
	b.sees("#count", "18 Services")
	b.forgive(true) // Chromium logs each attempt
	y.stop()
	b.sees("#offline", "has not answered since")
	b.sees("#health", "not answering")
	b.picture("page-away")
	y.sink.Update([]model.Object{service(90, "shop", "meanwhile", tcp("http", 80))}, nil)
	y.serve(address)
	b.holds("it is connected again", `document.querySelector("#offline").hidden`)
	b.forgive(false)
	b.sees("#count", "19 Services")
	b.sees("#health", "healthy")
}

// TestHiddenPage: a page that nobody sees lets go of its stream, for a browser has six connections for all of them, and goes on when somebody looks
// at it again.
func TestHiddenPage(t *testing.T) {
	y := newYard(t, shop())
	b := open(t, y.serve(""))
	b.sees("#count", "18 Services")
	show := func(hidden bool) {
		b.run(chromedp.Evaluate(fmt.Sprintf(`Object.defineProperty(document, "hidden", {configurable: true, value: %v}); document.dispatchEvent(new Event("visibilitychange"))`, hidden), nil))
	}
	show(true)
	await.Until(t, "the hidden page follows no events", func() bool { return y.streams() == 0 })
	y.sink.Update([]model.Object{service(90, "shop", "meanwhile", tcp("http", 80))}, nil)
	show(false)
	b.sees("#count", "19 Services")
	if n := y.streams(); n != 1 {
		t.Errorf("the page follows %d streams", n)
	}
}

// TestTooManyPages: a page for which there is no room says so, and replaces a page that is closed.
func TestTooManyPages(t *testing.T) {
	y := newYard(t, shop())
	address := y.serve("")
	var others []*http.Response
	for y.streams() < 16 {
		resp, err := http.Get("http://" + address + "/api/events")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		others = append(others, resp)
	}
	b := open(t, address)
	b.forgive(true) // Chromium logs answers that are errors
	b.sees("#offline", "Too many pages of this process are open: close one.")
	others[0].Body.Close()
	b.sees("#count", "18 Services")
	b.holds("it is kept up to date", `document.querySelector("#offline").hidden`)
	b.forgive(false)
}

// TestLongNames: rows in sight are kept up to date however long their names are, and an address that is cut off in the middle leads to the list.
func TestLongNames(t *testing.T) {
	long := func(i int) *model.Service {
		return service(i, strings.Repeat("n", 63), fmt.Sprintf("%s-%03d", strings.Repeat("x", 59), i), tcp("http", 80))
	}
	var objects []model.Object
	for i := range 100 {
		objects = append(objects, long(i), slice(long(i), endpoints(1, 1)))
	}
	y := newYard(t, objects)
	b := open(t, y.serve(""), chromedp.EmulateViewport(1280, 2600))
	b.sees("#count", "100 Services")
	b.sees(".row .number", "3/3")
	for i := range 60 {
		list := append(endpoints(1, 1), model.Endpoint{Addr: ip("10.244.1.200"), NodeName: "node-a"})
		y.sink.Update([]model.Object{slice(long(i), list)}, nil) // of no consequence to a dataplane
	}
	b.sees("#row-0 .c5", "1 not ready")
	b.sees("#row-59 .c5", "1 not ready")
	b.run(chromedp.Navigate("about:blank"), chromedp.Navigate("http://"+b.address+"/#/services/%"))
	b.sees("#count", "100 Services")
}

// TestClocks: lateness is measured by the clock of the relay, not the browser's.
func TestClocks(t *testing.T) {
	f := newFleet(3)
	address, _ := serve(t, "", func(ctx context.Context) http.Handler { return ui.RelayHandler(ctx, f) })
	b := open(t, address)
	b.sees("#count", "3 nodes")
	b.run(chromedp.Evaluate(`Date.now = ((now) => () => now() + 3600_000)(Date.now)`, nil))
	f.change(1, func(n *ui.Node) { n.Applied, n.PendingSince = 4700, time.Now() })
	b.sees(`[data-key="node-0001"] .c3`, "4700 of 4711")
	b.sees(`[data-key="node-0001"] .c5`, "waiting since")
	f.change(1, func(n *ui.Node) { n.PendingSince = time.Now().Add(time.Minute) })
	b.holds("it is late by nobody's clock", `document.querySelector('[data-key="node-0001"] .c5').textContent === ""`)
}

// TestManyServices: the first rows of 10,000 are there within a second, and the last ones can be scrolled to.
func TestManyServices(t *testing.T) {
	y := newYard(t, many(10_000))
	b := open(t, y.serve(""))
	b.sees(".row", "service-00000")
	var first float64
	b.value(`performance.now()`, &first)
	b.sees("#count", "10,000 Services")
	var all float64
	b.value(`performance.now()`, &all)
	var elements int
	b.value(`document.querySelectorAll(".row").length`, &elements)
	if elements > 80 {
		t.Errorf("%d rows are elements: those in sight are enough", elements)
	}
	b.press("/")
	b.press("service-09999")
	b.sees("#count", "1 of 10,000 Services")
	b.sees(".row", "service-09999")
	b.press(kb.Escape)
	b.press(kb.End)
	b.sees(".row", "service-09999")
	var frame float64
	b.run(chromedp.Evaluate(`new Promise((done) => {
		const box = document.querySelector("#rows"), times = [];
		let last = performance.now();
		const step = () => {
			const now = performance.now();
			times.push(now - last);
			last = now;
			box.scrollTop = (times.length * 3001) % box.scrollHeight;
			if (times.length < 60) requestAnimationFrame(step);
			else done(times.sort((a, b) => a - b)[30]);
		};
		requestAnimationFrame(step);
	})`, &frame, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	t.Logf("first rows seen after %.0f ms, all counted after %.0f ms; a frame while scrolling takes %.1f ms", first, all, frame)
}

// TestRelay: the page of a relay has its 5,000 nodes, the worst first, as they change.
func TestRelay(t *testing.T) {
	f := newFleet(5000)
	f.change(4321, func(n *ui.Node) {
		n.Failed, n.FailedSince, n.Failures = 2, time.Now(), []ui.Failure{{Service: "shop/web", Reason: "no room for 70000 source ranges"}}
	})
	f.change(1234, func(n *ui.Node) { n.Applied, n.PendingSince = 4700, time.Now().Add(-3*time.Minute) })
	f.change(7, func(n *ui.Node) { n.Clients, n.Gone = 0, time.Now() })
	address, _ := serve(t, "", func(ctx context.Context) http.Handler { return ui.RelayHandler(ctx, f) })
	b := open(t, address, colours("light"))
	b.sees("#count", "5,000 nodes")
	b.sees("#health", "relay is healthy, with problems")
	b.sees("#health", "4,999 nodes following · 1 with failures · 1 behind · 1 left lately")
	b.holds("the worst are first", `["node-4321", "node-1234", "node-0007", "node-0000"].every((name, i) => document.querySelector("#row-" + i)?.dataset.key === name)`)
	b.sees("#row-0", "2 Services not programmed since")
	b.sees("#row-1", "4700 of 4711")
	b.sees("#row-1", "an update has been waiting since")
	b.sees("#row-2", "left at")
	b.holds("there is no page of Services", `document.querySelectorAll("nav a, section").length === 2`)
	b.picture("page-relay")
	var elements int
	b.value(`document.querySelectorAll(".row").length`, &elements)
	if elements > 80 {
		t.Errorf("%d rows are elements: those in sight are enough", elements)
	}

	b.press("/")
	b.holds("the filter has the focus", `document.activeElement.id === "filter"`)
	b.press(kb.Backspace) // with the driver, the page also gets the character
	b.press("node-2345")
	b.sees("#count", "1 of 5,000 nodes")
	b.press(kb.Enter)
	b.press(kb.Enter)
	b.sees("#one h2", "node-2345")
	f.change(2345, func(n *ui.Node) {
		n.Failed, n.FailedSince, n.Failures = 1, time.Now(), []ui.Failure{{Service: "shop/cart", Reason: "<b>no room</b>"}}
	})
	b.sees("#one caption", "1 Service not programmed")
	b.sees("#one td", "<b>no room</b>")
	b.sees(`[data-key="node-2345"] .c5`, "1 Service not programmed")
	b.picture("page-relay-node")
	// Both come before the browser has told the page of its new address.
	b.run(chromedp.Evaluate(`for (const _ of [1, 2]) document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }))`, nil))
	b.holds("the node is closed, and the filter is gone", `document.querySelector("#one").hidden && document.querySelector("#count").textContent === "5,000 nodes"`)
	b.holds("it is among the worst now", `document.querySelector("#row-0")?.dataset.key === "node-2345"`)
	for i := range 5000 {
		f.change(i, func(n *ui.Node) { n.Revision, n.Applied, n.PendingSince = 4712, 4712, time.Time{} })
	}
	b.sees("#row-2 .c5", "left at")
	b.press("?")
	b.holds("there is help", `document.querySelector("#help").open`)
	b.press(kb.Escape)
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), colours("dark"))
	b.holds("nothing is wider than a phone", `document.documentElement.scrollWidth <= innerWidth`)
	b.picture("page-relay-phone")
}

// TestLab: the page of a lab has the connections of its newest round, in the list, in the picture and one by one. New
// connections that are counted are also in the list.
func TestLab(t *testing.T) {
	l := &laboratory{yard: newYard(t, shop())}
	address, _ := serve(t, "", func(ctx context.Context) http.Handler { return ui.Handler(ctx, l) })
	b := open(t, address, colours("light"))
	b.sees("#count", "18 Services")
	l.goRound(8, "")
	b.sees(`[data-key="shop/cart"] .c5`, "16 connections in the last round")
	b.sees("#health", "16 connections in the last round · all as they must be")
	b.run(chromedp.Evaluate(`location.hash = "#/services/shop/cart"`, nil))
	b.sees("#one .paths", "cluster IP 10.96.0.11:80/TCP")
	b.sees("#one .picture", "answered 8")
	b.holds("connections are seen where they flow", `document.querySelectorAll("#one .wire.flows").length === 2`)
	b.picture("page-lab")
	twice := service(1, "shop", "cart", tcp("http", 80), tcp("alias", 8080))
	both := slice(twice, endpoints(1, 2))
	both.Ports[1].Port = both.Ports[0].Port
	l.sink.Update([]model.Object{twice, both}, nil)
	b.holds("another port can be chosen", `document.querySelectorAll("#one .chips button").length === 2`)
	b.sees(`#one .chips [aria-pressed="true"]`, "alias")
	b.holds("a port with the same endpoints has connections of its own", `!document.querySelector("#one .picture").textContent.includes("answered")`)
	b.run(chromedp.Click(`#one .chips [aria-pressed="false"]`))
	b.sees("#one .picture", "answered 8")
	l.goRound(9, "10.244.1.99 answered, which is none of its endpoints here")
	b.sees("#one .picture", "answered 9")
	b.sees("#one .paths .bad", "which is none of its endpoints here")
	b.sees("#health", "1 path not as they must be")
	b.run(chromedp.Evaluate(`location.hash = "#/services"`, nil))
	b.sees(`[data-key="shop/cart"] .c5`, "1 of 1 path not as they must be: pod to 10.96.0.11:80: 10.244.1.99 answered")
}

// TestTraffic: new, refused and dropped connections are columns once they are counted. A Service without endpoints that clients ask for is first.
func TestTraffic(t *testing.T) {
	l := &laboratory{yard: newYard(t, shop())}
	address, _ := serve(t, "", func(ctx context.Context) http.Handler { return ui.Handler(ctx, l) })
	b := open(t, address, colours("light"))
	b.sees("#count", "18 Services")
	b.holds("there are no columns while nothing is counted", `!document.querySelector("#head .r0").checkVisibility()`)
	l.count(map[string]view.Counts{"mail": {Connections: 60}, "newsletter": {Connections: 50, Rejects: 50}, "storefront": {Connections: 4000, Drops: 5}})
	b.sees(`[data-key="shop/mail"] .r0`, "12")
	b.sees(`[data-key="shop/newsletter"] .r1`, "10")
	b.sees(`[data-key="shop/storefront"] .r2`, "1")
	b.holds("what is asked for without endpoints is red and first", `document.querySelector("#row-0").matches('.asked[data-key="shop/newsletter"]')`)
	b.picture("page-traffic")
	b.run(chromedp.Click(`#summary [data-show="refused"]`))
	b.sees("#count", "2 of 18 Services")
	b.run(chromedp.Click(`#head [data-sort="new"]`))
	b.holds("the most connections are first", `document.querySelector("#row-0").dataset.key === "shop/storefront"`)
	b.holds("the address has the filter and the order", `location.hash === "#/services?show=refused&sort=new"`)
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	b.holds("nothing is wider than a phone", `document.documentElement.scrollWidth <= innerWidth`)
	b.run(chromedp.Click(`#head [data-sort="refused"]`))
	b.holds("a phone sorts, too", `document.querySelector("#row-0").dataset.key === "shop/newsletter"`)
	b.sees(`[data-key="shop/newsletter"] .r1`, "10")
	b.holds("a phone shows all filters", `document.querySelector("#summary").scrollWidth <= document.querySelector("#summary").clientWidth`)
	b.picture("page-traffic-phone")
	b.run(chromedp.EmulateViewport(1280, 1000), chromedp.Evaluate(`location.hash = "#/services/shop/newsletter"`, nil))
	l.remember()
	b.sees("#one .graphs", "New connections per second")
	b.holds("the refused ones are drawn", `document.querySelector("#one .graph .line.bad").getAttribute("d").length > 100`)
	b.sees("#one .reason", "NoEndpoints")
	b.holds("there is no list of no endpoints", `document.querySelector("#one table") === null`)
	b.sees("#one .remedy", "Remedy: compare its selector with the labels of the pods")
	b.picture("page-failing")
	b.run(colours("dark"))
	b.picture("page-failing-dark")
	b.run(chromedp.Evaluate(`location.hash = "#/services/shop/mail"`, nil))
	b.sees("#one h2", "shop/mail")
	b.holds("an endpoint was away twice", `document.querySelectorAll("#one .strip")[0].querySelectorAll("rect").length === 3 && document.querySelectorAll("#one .strip")[1].querySelectorAll("rect").length === 1`)
	b.holds("the number of endpoints went down twice, and is back", `document.querySelector("#one .graph .line.good").getAttribute("d").split("V").length === 6`)
	b.picture("page-graphs")
	b.run(chromedp.Focus(`#one [data-sort="node"]`))
	b.press(kb.Enter)
	b.press(kb.Enter)
	b.holds("the endpoints are in order of their nodes", `document.querySelector("#one [data-table] tbody tr").textContent.includes("node-c") && document.activeElement.dataset.sort === "node"`)
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), colours("light"))
	b.holds("nothing is wider than a phone", `document.documentElement.scrollWidth <= innerWidth && document.querySelector("#one").scrollWidth <= innerWidth`)
	b.picture("page-graphs-phone")
	b.run(chromedp.Evaluate(`location.hash = "#/services/data/replica"`, nil))
	b.sees("#one .remark a", "data/postgres")
	b.picture("page-conflict-phone")
}

// TestLarge: of 3,000 Services, those that hurt are first.
func TestLarge(t *testing.T) {
	objects := many(3000)
	for i := range 3 {
		objects = append(objects, service(5000+i, "team-500", fmt.Sprint("broken-", i), tcp("http", 80)))
	}
	l := &laboratory{yard: newYard(t, objects)}
	address, _ := serve(t, "", func(ctx context.Context) http.Handler { return ui.Handler(ctx, l) })
	b := open(t, address, colours("light"))
	b.sees("#count", "3,003 Services")
	l.count(map[string]view.Counts{"mail": {Connections: 60}})
	b.holds("those without endpoints are first", `[0, 1, 2].every((i) => document.querySelector("#row-" + i).dataset.key === "team-500/broken-" + i)`)
	b.sees("#head", "Refused/s")
	b.picture("page-3000")
}

// TestAddress: filter and order are in the address, which shows the same when it is opened elsewhere, and headers sort by the keyboard.
func TestAddress(t *testing.T) {
	y := newYard(t, shop())
	b := open(t, y.serve(""))
	b.sees("#count", "18 Services")
	b.sees(`#summary [data-show="none"]`, "2 no endpoints")
	b.sees(`#summary [data-show="conflicts"]`, "1 conflict")
	b.sees(`[data-key="data/replica"] .c5`, "10.96.0.33:5432/TCP belongs to data/postgres")
	b.run(chromedp.Focus(`#head [data-sort="name"]`))
	b.press(kb.Enter)
	b.press(kb.Enter)
	b.holds("the names are in descending order", `document.querySelector("#row-0").dataset.key === "shop/thumbnails" && document.activeElement.dataset.sort === "name"`)
	b.run(chromedp.Click(`#summary [data-show="none"]`))
	b.sees("#count", "2 of 18 Services")
	b.holds("the address has both", `location.hash === "#/services?show=none&sort=name-"`)
	// The count is there before the rows are drawn, and a click goes to a place.
	b.holds("the rows of both are drawn", `document.querySelectorAll("#space .row").length === 2`)
	b.run(chromedp.Click(`[data-key="shop/newsletter"]`))
	b.holds("a Service keeps them", `location.hash === "#/services/shop/newsletter?show=none&sort=name-"`)
	b.press(kb.Escape)
	b.holds("the list has them again", `location.hash === "#/services?show=none&sort=name-"`)
	b.run(chromedp.Navigate("about:blank"), chromedp.Navigate("http://"+b.address+"/#/services?q=replica&show=conflicts&sort=port-"))
	b.sees("#count", "1 of 18 Services")
	b.holds("the filter is shown", `document.querySelector("#filter").value === "replica" && document.querySelector('#summary [aria-pressed="true"]').dataset.show === "conflicts"`)
	b.holds("the order is shown", `document.querySelector('#head [aria-sort="descending"] button').dataset.sort === "port"`)
	b.press(kb.Escape)
	b.sees("#count", "18 Services")
}

// TestOthersAreKeptOut: a site whose name is made to resolve to this machine gets nothing, and no site may frame the page.
func TestOthersAreKeptOut(t *testing.T) {
	y := newYard(t, shop())
	address := y.serve("")
	b := open(t, address)
	b.sees("#count", "18 Services")
	_, port, _ := strings.Cut(address, ":")
	b.forgive(true)
	b.run(chromedp.Navigate("http://rebound.example:" + port + "/api/services"))
	b.sees("body", "neither localhost nor an address of this server")
	b.run(chromedp.Navigate("http://localhost:" + port + "/"))
	b.sees("#count", "18 Services")
}

// TestHeaders: all that is served has the policy, files and answers alike.
func TestHeaders(t *testing.T) {
	y := newYard(t, shop())
	b := open(t, y.serve(""))
	b.sees("#count", "18 Services")
	y.mu.Lock()
	paths := map[string]bool{}
	for _, r := range y.seen {
		paths[r.URL.Path] = true
	}
	y.mu.Unlock()
	for path := range paths {
		if path == "/api/events" {
			continue
		}
		resp, err := http.Get("http://" + b.address + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if policy := resp.Header.Get("Content-Security-Policy"); resp.StatusCode == http.StatusOK && !strings.HasPrefix(policy, "default-src 'none'") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has %s", path, must(json.Marshal(resp.Header)))
		}
	}
	if len(paths) < 12 {
		t.Errorf("the page loads %v only", paths)
	}
}

func must(text []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return string(text)
}
