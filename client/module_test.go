package client

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const whyAlone = `
Law 9: the client module builds alone and needs grpc and protobuf only, its tests included. Authors of dataplanes link this
module into a program of their own: each further dependency is a version that they must agree with, and code that they must
trust. Helpers for tests can be written in twenty lines.`

// allowed are grpc, protobuf and their dependencies.
var allowed = []string{
	"google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto/googleapis/rpc",
	"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
}

// summed are dependencies of the tests of grpc and protobuf. They are never built, but go mod tidy lists their sums.
var summed = []string{"github.com/golang/protobuf", "github.com/google/go-cmp", "gonum.org/v1/gonum"}

// alone runs the go command as it works for who has only this module.
func alone(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -trimpath") // as in make check, whose compiled packages are reused
	out, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = exit.Stderr
		}
		t.Fatalf("go %s: %v\n%s%s%s", strings.Join(args, " "), err, out, stderr, whyAlone)
	}
	return out
}

func TestTheModuleStandsAlone(t *testing.T) {
	alone(t, "vet", "./...")
	var mod struct {
		Require []struct{ Path, Version string }
		Replace []any
	}
	if err := json.Unmarshal(alone(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces %v: programs that require the module would build something else.%s", mod.Replace, whyAlone)
	}
	for _, r := range mod.Require {
		if !slices.Contains(allowed, r.Path) {
			t.Errorf("go.mod requires %s.%s", r.Path, whyAlone)
		}
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sums)) {
		if path, _, _ := strings.Cut(line, " "); !slices.Contains(allowed, path) && !slices.Contains(summed, path) {
			t.Errorf("go.sum has %s.%s", path, whyAlone)
		}
	}
}

func TestNothingElseIsLinked(t *testing.T) {
	out := alone(t, "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")
	seen := 0
	for path := range strings.FieldsSeq(string(out)) {
		seen++
		if path != "github.com/switchyard-net/switchyard/client" && !slices.Contains(allowed, path) {
			t.Errorf("packages of %s are linked.%s", path, whyAlone)
		}
	}
	if seen < 20 {
		t.Errorf("go list has found %d packages of modules: the law is not looking", seen)
	}
}
