package manifest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

type settings struct {
	Name    string         `json:"name"`
	Listen  netip.AddrPort `json:"listen"`
	Ranges  []netip.Prefix `json:"ranges"`
	Limit   *int32         `json:"limit"`
	Section struct {
		Addr netip.Addr `json:"addr"`
	} `json:"section"`
}

func TestSingleReadsOverWhatIsThere(t *testing.T) {
	doc, errs := Single("f", []byte("# a comment\n---\napiVersion: v1\nkind: Settings\nlisten: '[::]:80'\nranges: [10.0.0.0/8]\nname: null\nsection: {addr: ''}\n"))
	if len(errs) > 0 || doc.APIVersion != "v1" || doc.Kind != "Settings" {
		t.Fatalf("Single = %+v, %v", doc, errs)
	}
	limit := int32(7)
	s := settings{Name: "kept", Limit: &limit}
	s.Section.Addr = netip.MustParseAddr("192.0.2.1")
	if errs := doc.Into(&s); len(errs) > 0 {
		t.Fatal(errs)
	}
	if s.Name != "kept" || s.Listen.String() != "[::]:80" || len(s.Ranges) != 1 || *s.Limit != 7 || s.Section.Addr.IsValid() {
		t.Errorf("read %+v", s)
	}
}

func TestSingleFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "f: is empty",
		"\xff\xfea":                         "f:1: is UTF-16",
		"a: [":                              "f:1: not valid YAML",
		"a":                                 `f:1:1: must be an object with apiVersion and kind, got "a"`,
		"a: 1\n---\n# nothing\n---\nb: 2\n": "f:5: contains a second document",
	} {
		_, errs := Single("f", []byte(text))
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("Single(%q) = %v, want %s", text, errs, want)
		}
	}
}

func TestIntoFaults(t *testing.T) {
	for text, want := range map[string]string{
		"nam: x":                  "f:1:1: nam: there is no such field: did you mean name?",
		"listen: 80":              "f:1:9: listen: must be an IP address and port such as 0.0.0.0:10256 or [::]:10256, got the number 80",
		"ranges: [10.0.0.0/33]":   `f:1:10: ranges[0]: must be a CIDR such as 10.244.0.0/16, got "10.0.0.0/33"`,
		"section: {addr: {a: 1}}": "f:1:17: section.addr: must be an IP address such as 192.0.2.10, got an object",
		"name: a\nname: b":        "f:2:1: name: is given twice, first in line 1",
	} {
		doc, errs := Single("f", []byte(text))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		errs = doc.Into(&settings{})
		if len(errs) != 1 || errs[0].Error() != want {
			t.Errorf("%q: %v, want %s", text, errs, want)
		}
		if unknown := strings.Contains(want, "no such field"); len(errs) == 1 && errors.Is(errs[0], ErrUnknownField) != unknown {
			t.Errorf("%q: ErrUnknownField is %v", text, !unknown)
		}
	}
}

func TestDocumentErrorHasThePosition(t *testing.T) {
	doc, errs := Single("f", []byte("---\nname: x\nsection:\n  addr: 192.0.2.1\n"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for path, want := range map[string]string{
		"section.addr":  "f:4:9: section.addr: bad",
		"section.other": "f:4:3: section.other: bad",
		"limit":         "f:2:1: limit: bad",
	} {
		if err := doc.Error(path, errors.New("bad")); err.Error() != want {
			t.Errorf("Error(%s) = %v, want %s", path, err, want)
		}
	}
}
