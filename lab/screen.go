//go:build linux

package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// pageTime is how long one page of a table that is longer than the terminal is shown.
const pageTime = 6 * time.Second

// screen shows one view after the other: in place on a terminal, one below the other elsewhere.
type screen struct {
	out   io.Writer
	size  func() (width, height int)
	paint palette
	// terminal is set while the alternate screen is on.
	terminal bool
	begun    time.Time
	// last is the summary of the last view, which stays when the table goes.
	last []string
}

func newScreen(o Options) *screen {
	s := &screen{out: o.Out, size: o.Size, paint: palette{o.Colour}, begun: time.Now()}
	if width, _ := o.Size(); width > 0 {
		s.terminal = true
		fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J") // alternate screen, no cursor, no wrapping, clear
	}
	return s
}

// close gives the terminal back as it was.
func (s *screen) close() {
	if s.terminal {
		fmt.Fprint(s.out, "\x1b[?7h\x1b[?25h\x1b[?1049l")
		for _, line := range s.last {
			fmt.Fprintln(s.out, line)
		}
	}
}

// progress shows what is under way while there is no view.
func (s *screen) progress(text string) {
	if s.terminal {
		fmt.Fprint(s.out, "\x1b[H\x1b[2K"+s.paint.dim(text))
	}
}

// show draws a view. Where there is no terminal, only views after a change are drawn.
func (s *screen) show(v *view, changed bool) {
	width, height := s.size()
	if !s.terminal || width == 0 {
		if changed {
			fmt.Fprintln(s.out, strings.Join(v.lines(s.paint, defaultWidth), "\n"))
		}
		return
	}
	v.wrapped = true
	lines := v.lines(s.paint, width)
	s.last = append([]string{lines[0]}, v.summary(s.paint, width)...)
	edit := ""
	if v.followed {
		edit = "Edit " + v.inputs + " to change the lab; "
	}
	footer := s.paint.dim(fmt.Sprintf("revision %d, %d connections in %.1fs. %sCtrl-C ends it.", v.revision, v.calls, v.took.Seconds(), edit))
	page, pages := s.page(len(lines), height-1)
	if pages > 1 {
		first := page * (height - 1)
		lines = lines[first:min(first+height-1, len(lines))]
		footer = s.paint.dim(fmt.Sprintf("page %d of %d. ", page+1, pages)) + footer
	}
	// One write, and no clearing before it: nothing flickers.
	var b strings.Builder
	b.WriteString("\x1b[H")
	for _, line := range append(lines, footer) {
		b.WriteString("\x1b[2K" + line + "\r\n") // clearing to the right would take a character in the last column
	}
	fmt.Fprint(s.out, strings.TrimSuffix(b.String(), "\r\n")+"\x1b[J")
}

// page describes which part of so many lines is to be shown now.
func (s *screen) page(lines, height int) (page, pages int) {
	if height < 1 || lines <= height {
		return 0, 1
	}
	pages = (lines + height - 1) / height
	return int(time.Since(s.begun)/pageTime) % pages, pages
}
