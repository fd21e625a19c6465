package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenses are the names of files with the terms of a module, and with the notices that they ask to pass on.
var licenses = regexp.MustCompile(`(?i)^(un)?licen[cs]e|^copying|^notice|^patents`)

// noticesOf is the key of the notices of a set of programs.
func noticesOf(p platform, set string) string { return p.os + "-" + p.arch + "/" + set }

// linked is a package that the go command lists.
type linked struct {
	ImportPath, Dir, Name string
	Standard              bool
	Deps                  []string
	Module                *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// collect collects the licenses of all packages that the programs of a set link. It searches a package's directory, and
// all directories above it in the module. Only linked packages count, so the notices name no module that the programs
// do not have.
func (r *release) collect(ctx context.Context) error {
	r.notices = make(map[string][]byte)
	for _, p := range platforms {
		packages, err := r.list(ctx, p)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
		for set, names := range sets(p.os) {
			texts := make(map[string]string) // by module and file
			for _, name := range names {
				program := packages["github.com/switchyard-net/switchyard/cmd/"+name]
				if program == nil {
					return fmt.Errorf("%s/%s: there is no program %s", p.os, p.arch, name)
				}
				for _, dep := range program.Deps {
					if err := terms(packages[dep], texts); err != nil {
						return err
					}
				}
			}
			text, err := os.ReadFile(filepath.Join(r.goroot, "LICENSE"))
			if err != nil {
				return err
			}
			texts["Go "+strings.TrimPrefix(r.goVersion, "go")+"\nLICENSE"] = string(text)
			r.notices[noticesOf(p, set)] = notices(set, texts)
		}
	}
	return nil
}

func (r *release) list(ctx context.Context, p platform) (map[string]*linked, error) {
	out, err := r.goCommand(ctx, p, "list", "-deps", "-tags", tags, "-json=ImportPath,Dir,Name,Standard,Deps,Module", "./cmd/...").Output()
	if err != nil {
		return nil, err
	}
	packages := make(map[string]*linked)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l linked
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages[l.ImportPath] = &l
	}
}

// terms adds the texts that go with a package.
func terms(l *linked, texts map[string]string) error {
	if l == nil || l.Module == nil || l.Standard || strings.HasPrefix(l.Module.Path, "github.com/switchyard-net/") {
		return nil
	}
	found := false
	for dir := l.Dir; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() || !licenses.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			name, err := filepath.Rel(l.Module.Dir, filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			texts[l.Module.Path+" "+l.Module.Version+"\n"+filepath.ToSlash(name)] = string(text)
			found = true
		}
		if dir == l.Module.Dir || len(dir) <= len(l.Module.Dir) {
			break
		}
	}
	if !found {
		return fmt.Errorf("module %s %s has no file with a license; it cannot be shipped", l.Module.Path, l.Module.Version)
	}
	return nil
}

// notices writes texts, each once with all modules that have it.
func notices(set string, texts map[string]string) []byte {
	owners := make(map[string][]string)
	for owner, text := range texts {
		text = strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
		owners[text] = append(owners[text], strings.ReplaceAll(owner, "\n", ", "))
	}
	var order []string
	for text := range owners {
		slices.Sort(owners[text])
		order = append(order, text)
	}
	slices.SortFunc(order, func(a, b string) int { return strings.Compare(owners[a][0], owners[b][0]) })
	var b bytes.Buffer
	fmt.Fprintf(&b, "The programs of %s link the following modules, under the following terms.\n", set)
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n", strings.Repeat("=", 80))
		for _, owner := range owners[text] {
			fmt.Fprintln(&b, owner)
		}
		fmt.Fprintf(&b, "%s\n\n%s\n", strings.Repeat("-", 80), text)
	}
	return b.Bytes()
}
