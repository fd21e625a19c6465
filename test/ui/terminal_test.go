package ui

import (
	"context"
	"flag"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

var terminals = flag.String("terminals", "", "directory with what is on terminals, in files *.ansi, to take pictures of; default: none are taken")

// terminalStyle draws the codes of colours as a dark terminal does.
const terminalStyle = `
body { margin: 0; background: #1d1f21; color: #d0d3d0 }
pre { margin: 12px; font: 14px/1.25 "DejaVu Sans Mono", monospace }
.c1 { font-weight: bold } .c2 { opacity: .65 } .c7 { background: #d0d3d0; color: #1d1f21 }
.c31 { color: #e06c62 } .c32 { color: #98c379 } .c33 { color: #e0b35c } .c34 { color: #6a9ff0 } .c35 { color: #c583d8 } .c36 { color: #56b6c2 }
.c91 { color: #ff8f85 } .c92 { color: #b9e69b } .c93 { color: #ffd98a } .c94 { color: #93bdff } .c95 { color: #e3a9f2 } .c96 { color: #86dbe5 }`

// asPage returns a page that shows what a terminal does.
func asPage(text string) string {
	var b strings.Builder
	b.WriteString(`<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><style>` + terminalStyle + "</style><pre>")
	var codes []string
	for first := true; text != ""; first = false {
		part, rest, found := strings.Cut(text, "\x1b[")
		if !first {
			var sgr string
			if sgr, part, _ = strings.Cut(part, "m"); sgr == "" {
				sgr = "0"
			}
			for code := range strings.SplitSeq(sgr, ";") {
				switch code {
				case "0":
					codes = nil
				case "27":
					codes = slices.DeleteFunc(codes, func(c string) bool { return c == "c7" })
				default:
					codes = append(codes, "c"+code)
				}
			}
		}
		fmt.Fprintf(&b, `<span class="%s">%s</span>`, strings.Join(codes, " "), html.EscapeString(part))
		if !found {
			break
		}
		text = rest
	}
	return b.String() + "</pre>"
}

// TestTerminals takes pictures of what is on terminals.
func TestTerminals(t *testing.T) {
	if *terminals == "" || *screenshots == "" {
		t.Skip("-terminals and -screenshots name no directories")
	}
	files, err := filepath.Glob(filepath.Join(*terminals, "*.ansi"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no *.ansi: %v", *terminals, err)
	}
	pages := map[string]string{"/": asPage("")}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages["/"+filepath.Base(file)] = asPage(string(text))
	}
	address, _ := serve(t, "", func(context.Context) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, pages[r.URL.Path]) })
	})
	b := open(t, address)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".ansi")
		columns := int64(80)
		if _, err := fmt.Sscanf(name, "lab-%d-", &columns); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, shown, _ := strings.Cut(pages["/"+filepath.Base(file)], "<pre>")
		lines := int64(strings.Count(shown, "\n"))
		b.run(chromedp.EmulateViewport(columns*843/100+30, lines*35/2+26), chromedp.Navigate("http://"+address+"/"+filepath.Base(file)))
		b.picture(name)
	}
}
