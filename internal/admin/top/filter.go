package top

import (
	"slices"
	"strings"
)

// Filter is a text that the rows of a live table must contain. People type it on the screen. Its zero value lets all rows through.
type Filter struct {
	// Text is what has been typed so far.
	Text string
	// Typing has keys change Text.
	Typing bool
}

// Edit takes a key while people type: the key's name, and its text if it has one. Enter keeps the filter, Esc leaves it.
func (f *Filter) Edit(key, text string) {
	switch key {
	case "enter":
		f.Typing = false
	case "esc":
		*f = Filter{}
	case "backspace":
		if r := []rune(f.Text); len(r) > 0 {
			f.Text = string(r[:len(r)-1])
		}
	default:
		f.Text += text
	}
}

// Matches reports whether one of the texts of a row contains the filter, in capitals or not.
func (f *Filter) Matches(texts ...string) bool {
	want := strings.ToLower(f.Text)
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), want) })
}

// State is what the line below the table says of the filter, to be appended: empty without one.
func (f *Filter) State() string {
	switch {
	case f.Typing:
		return "; filter: " + f.Text + "_"
	case f.Text != "":
		return "; filter: " + f.Text
	}
	return ""
}

// Keys is the line of keys: the keys while typing, or else the table's own.
func (f *Filter) Keys(table string) string {
	if f.Typing {
		return "Enter keep the filter  Esc leave it"
	}
	return table
}
