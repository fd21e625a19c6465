//go:build linux

package lab

import "strings"

// palette colours text, or leaves it as it is.
type palette struct{ colour bool }

func (p palette) sgr(code, s string) string {
	if !p.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) bold(s string) string  { return p.sgr("1", s) }
func (p palette) dim(s string) string   { return p.sgr("2", s) }
func (p palette) good(s string) string  { return p.sgr("32", s) }
func (p palette) warn(s string) string  { return p.sgr("33", s) }
func (p palette) bad(s string) string   { return p.sgr("31;1", s) }
func (p palette) quiet(s string) string { return p.sgr("35", s) }

// chosen marks a line, or begins it with > where there are no colours. Text with its own colours keeps them:
// reversed, all bars are black.
func (p palette) chosen(s string) string {
	if !p.colour {
		return ">" + strings.TrimPrefix(s, " ")
	}
	s = strings.ReplaceAll(s, "\x1b[", "\x1b[27;")
	return "\x1b[7m" + strings.ReplaceAll(s, "\x1b[27;0m", "\x1b[0;7m") + "\x1b[0m"
}

// shades distinguish neighbouring servers where there are no colours.
var (
	shades  = []string{"█", "▒", "▓", "░"}
	colours = []string{"36", "34", "32", "33", "35", "31", "96", "94", "92", "93", "95", "91"}
)

// cell is one cell of the ith server's bar.
func (p palette) cell(i int) string {
	if p.colour {
		return "█"
	}
	return shades[i%len(shades)]
}

// share colours what stands for the ith server.
func (p palette) share(i int, s string) string { return p.sgr(colours[i%len(colours)], s) }
