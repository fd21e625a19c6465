// Command image puts builds of Switchyard's programs for several platforms into a container image, as an archive.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/deploy/debian"
	"github.com/switchyard-net/switchyard/deploy/ociimage"
)

func main() {
	out := flag.String("o", "", "file to write")
	name := flag.String("name", "", "name and tag of the image, such as localhost/switchyard:v1.2.3")
	iptables := flag.Bool("iptables", false, "put both variants of iptables into the image, from packages of Debian, for mode iptables")
	cache := flag.String("cache", "", "directory that packages are kept in; needed with -iptables")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: image -o FILE -name NAME:TAG DIRECTORY...\nA DIRECTORY has the programs switchyard and switchyard-lab for one platform.\nSOURCE_DATE_EPOCH is the time of the image, in seconds since 1970.")
		flag.PrintDefaults()
	}
	flag.Parse()
	digest, err := build(*out, *name, *iptables, *cache, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// build writes the archive, under its name only once it is complete.
func build(out, name string, iptables bool, cache string, dirs []string) (digest string, err error) {
	if out == "" {
		return "", errors.New("say which file to write with -o")
	}
	if iptables && cache == "" {
		return "", errors.New("say with -cache where to keep packages")
	}
	o := ociimage.Options{Name: name, Labels: map[string]string{
		"org.opencontainers.image.title":       "switchyard",
		"org.opencontainers.image.description": "A node-local service proxy for Kubernetes",
		"org.opencontainers.image.source":      "https://github.com/switchyard-net/switchyard",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", fmt.Errorf("SOURCE_DATE_EPOCH: %w; it must be a number of seconds since 1970", err)
		}
		o.Created = time.Unix(seconds, 0)
	}
	var builds []ociimage.Build
	for _, dir := range dirs {
		var b ociimage.Build
		if b.Switchyard, err = os.ReadFile(filepath.Join(dir, path.Base(ociimage.Binary))); err != nil {
			return "", err
		}
		if b.Lab, err = os.ReadFile(filepath.Join(dir, path.Base(ociimage.Lab))); err != nil {
			return "", err
		}
		builds = append(builds, b)
	}
	if iptables {
		o.Programs, o.ProgramsAre = map[string][]byte{}, "iptables 1.8.9, legacy and nft, of Debian 12"
		for _, arch := range []string{"amd64", "arm64"} {
			if o.Programs[arch], err = debian.IPTables(context.Background(), arch, cache, o.Created); err != nil {
				return "", fmt.Errorf("iptables for %s: %w", arch, err)
			}
		}
	}
	if info, err := os.Stat(out); err == nil && !info.Mode().IsRegular() {
		// A rename would replace a device or a FIFO by a file.
		f, err := os.OpenFile(out, os.O_WRONLY, 0)
		if err != nil {
			return "", err
		}
		digest, err = write(f, o, builds)
		return digest, errors.Join(err, f.Close())
	}
	partial := out + ".partial"
	f, err := os.Create(partial)
	if err != nil {
		return "", err
	}
	digest, err = write(f, o, builds)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(partial))
	}
	return digest, os.Rename(partial, out)
}

func write(f io.Writer, o ociimage.Options, builds []ociimage.Build) (digest string, err error) {
	w := bufio.NewWriter(f)
	digest, err = ociimage.Write(w, o, builds...)
	return digest, errors.Join(err, w.Flush())
}
