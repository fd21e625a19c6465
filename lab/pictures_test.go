//go:build linux

package lab

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/switchyard-net/switchyard/internal/admin/top/toptest"
)

var pictures = flag.String("pictures", "", "directory for what is on terminals while the example runs, with colours; default: nothing is written")

// TestPictures writes what the live table of the example shows on terminals of 80 and 140 columns.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("-pictures names no directory")
	}
	o := testOptions(t, shop, nil)
	o.Colour, o.Size = true, func() (int, int) { return 140, 40 }
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var explained explainMsg
	draw := func(newest viewMsg) {
		newest.view.inputs = "shop"
		for _, width := range []int{80, 140} {
			for name, keys := range map[string]string{"table": "", "below": "pgdown down", "explained": "down e", "filter": "/ c a r t"} {
				l := &live{paint: palette{colour: true}}
				l.Update(tea.WindowSizeMsg{Width: width, Height: 34})
				l.Update(explained)
				l.Update(newest)
				toptest.Press(l, strings.Fields(keys)...)
				if err := os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("lab-%d-%s.ansi", width, name)), []byte(l.screen()+"\n"), 0o644); err != nil {
					t.Error(err)
				}
			}
		}
	}
	err := follow(ctx, o, func(message any, _ bool) {
		switch m := message.(type) {
		case explainMsg:
			explained = m
		case viewMsg:
			draw(m)
			end()
		}
	})
	if err != nil {
		t.Error(err)
	}
}
