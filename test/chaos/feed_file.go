//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// fileFeed is a directory with one manifest, which is replaced as a whole.
type fileFeed struct {
	dir       string
	node      string
	dataplane *dataplane
	names     []string // of objects, in order
	texts     map[string][]byte
}

func newFileFeed(dir, node string, d *dataplane) (*fileFeed, error) {
	f := &fileFeed{dir: filepath.Join(dir, "manifests"), node: node, dataplane: d, texts: map[string][]byte{}}
	return f, os.MkdirAll(f.dir, 0o755)
}

func (f *fileFeed) args() []string {
	return slices.Concat([]string{"run", "--source", f.dir, "--node", f.node}, podArgs(), f.dataplane.args())
}

func (f *fileFeed) put(changed []Object) error {
	for _, o := range changed {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%T %s", o, o.GetName())
		if f.texts[name] == nil {
			f.names = append(f.names, name)
		}
		f.texts[name] = text
	}
	var all bytes.Buffer
	for _, name := range f.names {
		all.WriteString("---\n")
		all.Write(f.texts[name])
		all.WriteByte('\n')
	}
	path := filepath.Join(f.dir, "cluster.yaml")
	if err := os.WriteFile(path+"~", all.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(path+"~", path)
}

func (f *fileFeed) close() error { return nil }
