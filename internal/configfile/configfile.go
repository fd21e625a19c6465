// Package configfile reads configuration files of every version, and writes them.
package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/switchyard-net/switchyard/client/regularfile"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

// Options say how files are read.
type Options struct {
	// Name is the file's name, for positions in errors. Default "configuration". [LoadFiles] uses the names of the
	// files.
	Name string
	// Platform is the platform that the configuration is for, named as in runtime.GOOS. Default: any.
	Platform string
	// SkipOthers reads files that other programs also use, such as kubeadm's. A ConfigMap counts as the configuration
	// files in it, and documents of other kinds are skipped, with a note.
	SkipOthers bool
	// Dataplanes are kinds of files of single dataplanes that may replace a KubeProxyConfiguration, such as the kinds
	// in [DataplaneKinds]. The dataplane then decides the mode, and fields that the kind lacks have their defaults.
	// Default: none.
	Dataplanes []string
}

// File is a configuration file, or a part of one.
type File struct {
	// Name is for positions in errors.
	Name string
	Data []byte
}

// MaxFile is how many bytes a configuration file may have.
const MaxFile = 8 << 20

// ReadFiles reads the files with these names from disk.
func ReadFiles(names ...string) ([]File, error) {
	var files []File
	for _, name := range names {
		data, err := regularfile.ReadFile(name, MaxFile)
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		files = append(files, File{Name: name, Data: data})
	}
	return files, nil
}

// Load reads a configuration file as [LoadFiles] does.
func Load(data []byte, o Options) (*config.Config, []config.Note, error) {
	if o.Name == "" {
		o.Name = "configuration"
	}
	return LoadFiles([]File{{Name: o.Name, Data: data}}, o)
}

// LoadFiles reads the files of a configuration, with its defaults, and checks it. Together the files hold one
// KubeProxyConfiguration of any version, which nodes may share, and any number of KubeProxyInstanceConfigurations for
// this node. These count where the KubeProxyConfiguration does not mention a field, or has its default. Two documents
// that give a field different values are a fault.
//
// The notes are for the operator's information: fields that moved or were dropped, and unknown fields of v1alpha1,
// which kube-proxy also ignores.
//
// The error, if any, joins all faults of the files, each with its line, field and remedy. With an error, LoadFiles also
// returns a configuration if three conditions hold. The KubeProxyConfiguration has a version with ConfigHardFail, only
// single fields are at fault, and the configuration is valid with defaults in their place. See [config.Choose].
func LoadFiles(files []File, o Options) (*config.Config, []config.Note, error) {
	l, err := load(files, o)
	return l.config, l.notes, err
}

// Marshal returns the file of the latest version that says what c says. Every field is written.
func Marshal(c *config.Config) ([]byte, error) { return MarshalObject(v1alpha2.From(c)) }

// MarshalObject returns a configuration object of any version as YAML. The fields are in the order of their type.
func MarshalObject(object any) ([]byte, error) {
	n, err := nodes(object)
	if err != nil {
		return nil, err
	}
	return encode(n)
}

// nodes returns object as a tree of YAML.
func nodes(object any) (*yaml.Node, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	// JSON is YAML, and a node keeps the order of keys, which a map would not.
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	block(&n)
	return n.Content[0], nil
}

// encode returns a tree of YAML as text.
func encode(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(n), enc.Close()); err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	return b.Bytes(), nil
}

// block writes n in the usual style of YAML, instead of the style of JSON.
func block(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		block(c)
	}
}
