package top

import "testing"

func TestFilter(t *testing.T) {
	f := Filter{Typing: true}
	for _, key := range []string{"C", "a", "r", "ä", "backspace", "T"} {
		f.Edit(key, key)
	}
	if want := "; filter: CarT_"; f.State() != want || f.Keys("q quit") == "q quit" {
		t.Errorf("while typing: %q with keys %q, want %q", f.State(), f.Keys("q quit"), want)
	}
	if !f.Matches("web", "shop/Cart:80") || f.Matches("web", "shop/car") {
		t.Error("what contains the filter does not match, or what does not matches")
	}
	f.Edit("enter", "")
	if want := "; filter: CarT"; f.Typing || f.State() != want || f.Keys("q quit") != "q quit" {
		t.Errorf("when kept: %+v, %q, want %q", f, f.State(), want)
	}
	f.Typing = true
	f.Edit("esc", "")
	if f != (Filter{}) || f.State() != "" || !f.Matches("anything") {
		t.Errorf("when left: %+v, %q", f, f.State())
	}
	f.Edit("backspace", "")
	if f.Text != "" {
		t.Errorf("nothing without its last letter is %q", f.Text)
	}
}
