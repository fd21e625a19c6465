package plaintext

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// texts are what others may write, and what people see of it.
var texts = map[string]string{
	"":                           "",
	"plain\ttext\n":              "plain\ttext\n",
	"✓ größer · 日本語":             "✓ größer · 日本語",
	"\x1b]52;c;aGk=\x07":         "�]52;c;aGk=�",
	"\x1b]0;title\x1b\\":         "�]0;title�\\",
	"\x1b[2J\x1b[H":              "�[2J�[H",
	"\x1b[31;1mred\x1b[0m":       "\x1b[31;1mred\x1b[0m",
	"\x1b[27;7mx\x1b[m":          "\x1b[27;7mx\x1b[m",
	"\x1b[8mhidden":              "�[8mhidden",
	"\x1b[30;40mhidden":          "�[30;40mhidden",
	"\x1b[38;5;1m":               "�[38;5;1m",
	"\x1b[1;1;1;1;1;1;1;1;1;1mx": "�[1;1;1;1;1;1;1;1;1;1mx",
	"\x1b":                       "�",
	"\x1b[3":                     "�[3",
	"\u009b2J\u0085":             "�2J�",
	"\x9b2J\xff":                 "�2J�",
	"a\rb\bc\x00\x7f":            "a�b�c��",
	"\u202egnp.exe\u2066\u200f":  "�gnp.exe��",
	"\u2028line":                 "�line",
}

// TestClean: only text, line feeds, tabs and colours pass, regardless of how the text is split into writes.
func TestClean(t *testing.T) {
	for text, want := range texts {
		if got := Clean(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(text), "by bytes": iotest.OneByteReader(strings.NewReader(text)), "by halves": iotest.HalfReader(strings.NewReader(text))} {
			var out strings.Builder
			w := NewWriter(&out)
			if _, err := io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{in}); err != nil {
				t.Error(err)
			}
			if err := w.Flush(); err != nil || out.String() != want {
				t.Errorf("%q written %s becomes %q, want %q; %v", text, name, out.String(), want, err)
			}
		}
	}
	if got := Line("a\nb\x1bc"); got != "a�b�c" {
		t.Errorf("a line is %q", got)
	}
}

// TestJSON: the JSON keeps its meaning for programs.
func TestJSON(t *testing.T) {
	for text := range texts {
		text = strings.ToValidUTF8(text, "?")
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		escaped := JSON(encoded)
		if clean := Clean(string(escaped)); clean != string(escaped) {
			t.Errorf("%q becomes %s, which is not clean", text, escaped)
		}
		var got string
		if err := json.Unmarshal(escaped, &got); err != nil || got != text {
			t.Errorf("%q becomes %s, which is %q, %v", text, escaped, got, err)
		}
	}
}

// FuzzClean: clean text stays clean, and has only the permitted control characters.
func FuzzClean(f *testing.F) {
	for text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Clean(text)
		if Clean(got) != got {
			t.Errorf("%q becomes %q, which is not clean", text, got)
		}
		for rest := got; ; {
			_, after, found := strings.Cut(rest, "\x1b")
			if !found {
				break
			}
			if n, _ := colour([]byte("\x1b" + after)); n == 0 {
				t.Errorf("%q has an escape sequence", got)
			}
			rest = after
		}
	})
}
