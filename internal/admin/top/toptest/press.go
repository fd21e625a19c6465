// Package toptest is for tests of live tables on a terminal.
package toptest

import tea "charm.land/bubbletea/v2"

// special are the keys without a text, by the names that bubbletea has for them.
var special = map[string]tea.KeyPressMsg{
	"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown},
	"home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "esc": {Code: tea.KeyEsc}, "enter": {Code: tea.KeyEnter},
	"backspace": {Code: tea.KeyBackspace}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl},
}

// Press presses keys, by their names, and reports whether the table ends.
func Press(table tea.Model, keys ...string) (ended bool) {
	for _, k := range keys {
		m, ok := special[k]
		if !ok {
			m = tea.KeyPressMsg{Text: k}
		}
		_, cmd := table.Update(m)
		ended = ended || cmd != nil
	}
	return ended
}
