package ociimage

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// architectures are Go's and OCI's names of processors by ELF's.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// platformOf reads off an executable what it runs on, and makes sure that it needs no other file.
func platformOf(exe []byte) (*v1.Platform, error) {
	f, err := elf.NewFile(bytes.NewReader(exe))
	if err != nil {
		return nil, fmt.Errorf("is no ELF executable: %w; build it with GOOS=linux", err)
	}
	defer f.Close()
	arch, ok := architectures[f.Machine]
	if !ok || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("is for %v %v %v; images are made for GOARCH=amd64 and arm64", f.Machine, f.Class, f.Data)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New("is dynamically linked, and the image has no libraries; build it with CGO_ENABLED=0")
		}
	}
	return &v1.Platform{Architecture: arch, OS: "linux"}, nil
}
