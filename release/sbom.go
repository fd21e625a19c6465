package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/switchyard-net/switchyard/deploy/debian"
)

// sboms writes a CycloneDX document for each artefact: cyclonedx-gomod reads the modules of each program from the program itself.
func (r *release) sboms(ctx context.Context) error {
	tool := filepath.Join(r.work, "cyclonedx-gomod")
	build := exec.CommandContext(ctx, "go", "build", "-o", tool, "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod")
	build.Dir, build.Stderr = filepath.Join(r.source, "release"), os.Stderr
	build.Env = append(os.Environ(), "GOPROXY=off", "CGO_ENABLED=0", "GOOS=", "GOARCH=")
	if err := build.Run(); err != nil {
		return err
	}
	known := make(map[string]*cdx.BOM)
	for _, a := range slices.Clone(r.artefacts) {
		for _, program := range a.programs {
			if known[program] != nil {
				continue
			}
			cmd := exec.CommandContext(ctx, tool, "bin", "-json", "-std", "-noserial", "-notimestamp", "-version", r.version, program)
			var stderr bytes.Buffer
			cmd.Stderr, cmd.Env = &stderr, append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod")
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, &stderr)
			}
			bom := new(cdx.BOM)
			if err := cdx.NewBOMDecoder(bytes.NewReader(out), cdx.BOMFileFormatJSON).Decode(bom); err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(program), err)
			}
			known[program] = bom
		}
		var b bytes.Buffer
		bom, err := r.merge(a, known)
		if err != nil {
			return err
		}
		if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.out, a.name+".cdx.json"), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// merge makes one document of the documents of an artefact's programs.
func (r *release) merge(a artefact, known map[string]*cdx.BOM) (*cdx.BOM, error) {
	bom := cdx.NewBOM()
	kind := cdx.ComponentTypeApplication
	if a.kind == "image" {
		kind = cdx.ComponentTypeContainer
	}
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: a.name, Type: kind, Name: a.name, Version: r.version, Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}}
	var components []cdx.Component
	seen := make(map[string]bool)
	for _, program := range a.programs {
		own := known[program]
		bom.Metadata.Tools = own.Metadata.Tools
		main := *own.Metadata.Component
		// The same program for another platform is another component.
		main.Name, main.BOMRef = filepath.Base(program)+" "+filepath.Base(filepath.Dir(program)), filepath.Base(filepath.Dir(program))+"/"+filepath.Base(program)
		main.Version = r.version
		components = append(components, main)
		for _, c := range *own.Components {
			if !seen[c.BOMRef] {
				seen[c.BOMRef] = true
				components = append(components, c)
			}
		}
	}
	if a.debian {
		list, err := debian.IPTablesPackages()
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			name, version, _ := strings.Cut(strings.TrimSuffix(path.Base(p.Path), "_"+p.Arch+".deb"), "_")
			purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", name, version, p.Arch)
			components = append(components, cdx.Component{
				BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl,
				Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
			})
		}
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom.Components = &components
	return bom, nil
}
