package ociimage

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// architectures are the platforms of images by the header of an ELF file.
var architectures = map[header]v1.Platform{
	{elf.EM_X86_64, elf.ELFCLASS64, elf.ELFDATA2LSB}:  {OS: "linux", Architecture: "amd64"},
	{elf.EM_AARCH64, elf.ELFCLASS64, elf.ELFDATA2LSB}: {OS: "linux", Architecture: "arm64"},
	{elf.EM_PPC64, elf.ELFCLASS64, elf.ELFDATA2LSB}:   {OS: "linux", Architecture: "ppc64le"},
	{elf.EM_S390, elf.ELFCLASS64, elf.ELFDATA2MSB}:    {OS: "linux", Architecture: "s390x"},
	{elf.EM_RISCV, elf.ELFCLASS64, elf.ELFDATA2LSB}:   {OS: "linux", Architecture: "riscv64"},
	// Releases are built with GOARM=7.
	{elf.EM_ARM, elf.ELFCLASS32, elf.ELFDATA2LSB}: {OS: "linux", Architecture: "arm", Variant: "v7"},
}

type header struct {
	machine elf.Machine
	class   elf.Class
	data    elf.Data
}

// platformOf reads the platform from an executable, and ensures that it needs no other file.
func platformOf(exe []byte) (*v1.Platform, error) {
	f, err := elf.NewFile(bytes.NewReader(exe))
	if err != nil {
		return nil, fmt.Errorf("is no ELF executable: %w; build it with GOOS=linux", err)
	}
	defer f.Close()
	platform, ok := architectures[header{f.Machine, f.Class, f.Data}]
	if !ok {
		return nil, fmt.Errorf("is for %v %v %v; images are made for GOARCH=amd64, arm64, ppc64le, s390x, arm and riscv64", f.Machine, f.Class, f.Data)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New("is dynamically linked, and the image has no libraries; build it with CGO_ENABLED=0")
		}
	}
	return &platform, nil
}
