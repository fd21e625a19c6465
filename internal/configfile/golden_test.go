package configfile_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/configfile"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestConversions reads each testdata/NAME.v1alpha1.yaml and expects NAME.v1alpha2.yaml, with the notes as its first
// comment. The written file must read back as the same configuration, without notes.
func TestConversions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.v1alpha1.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".v1alpha1.yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, notes, err := configfile.Load(data, configfile.Options{Name: file})
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, n := range notes {
				got.WriteString("# " + n.String() + "\n")
			}
			text, err := configfile.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			got.Write(text)
			golden := strings.Replace(file, "v1alpha1", "v1alpha2", 1)
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("the conversion is not what it was (-want +got):\n%s", diff)
			}
			back, notes, err := configfile.Load(text, configfile.Options{})
			if err != nil || len(notes) > 0 {
				t.Fatalf("reading back: %v %v", notes, err)
			}
			again, err := configfile.Marshal(back)
			if diff := cmp.Diff(string(text), string(again)); diff != "" || err != nil {
				t.Errorf("reading back changed something: %v\n%s", err, diff)
			}
		})
	}
}
