package manifest

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
)

// ForeignError is the fault of a file, or of a document in it, that is no manifest and was never meant to be one.
type ForeignError struct {
	// A phrase that describes the file: "is a template".
	What string
	// Remedy makes manifests of it, or names the part that a manifest needs and this file lacks.
	Remedy string
	// Source is set if another tool makes manifests of it.
	Source bool
}

func (e *ForeignError) Error() string { return e.What + ": " + e.Remedy }

// toFile ends the commands that make manifests.
const toFile = " > manifests.yaml"

// IsKustomization reports whether a file with this name describes what Kustomize builds of its directory.
func IsKustomization(file string) bool {
	switch filepath.Base(file) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}

// IsChart reports whether a file with this name describes the Helm chart in its directory.
func IsChart(file string) bool { return filepath.Base(file) == "Chart.yaml" }

// isValues reports whether a file with this name holds values for a Helm chart.
func isValues(file string) bool {
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".yaml"), ".yml")
	return name == "values" || strings.HasPrefix(name, "values-") || strings.HasPrefix(name, "values.") ||
		strings.HasSuffix(name, "-values") || strings.HasSuffix(name, ".values")
}

// HelmCommand prints the manifests of the chart in a directory.
func HelmCommand(dir string) string { return "helm template my-release " + dir }

// foreignName describes a file whose name belongs to a tool that generates manifests, and returns nil for other names.
func foreignName(file string) *ForeignError {
	dir := filepath.Dir(file)
	switch {
	case IsKustomization(file):
		return &ForeignError{"is for Kustomize", "build its directory with: kubectl kustomize " + dir + toFile, true}
	case IsChart(file):
		return &ForeignError{"describes a Helm chart", "render it with: " + HelmCommand(dir) + toFile, true}
	}
	return nil
}

// notManifest is the fault of a document that lacks what every manifest has.
func notManifest(file, lacks string) *ForeignError {
	if isValues(file) {
		return &ForeignError{"holds values for a Helm chart", "render the chart with: " + HelmCommand("CHART") + " --values " + file + toFile, true}
	}
	return &ForeignError{"is no manifest", lacks, false}
}

// action matches what templates have in places where YAML has nothing like it: a line that begins with {{, or an unquoted value that does.
var action = regexp.MustCompile(`(?m)(?:^\s*|[:-]\s+)\{\{.*$`)

// templateIn returns the fault of a text that is a template, with its line within the text, nil if it is none.
func templateIn(file string, text []byte) (fault *ForeignError, line int) {
	at := action.FindIndex(text)
	if at == nil {
		return nil, 0
	}
	at[0] += bytes.Index(text[at[0]:], []byte("{{"))
	found := strings.TrimSpace(string(text[at[0]:at[1]]))
	dir := filepath.Dir(file)
	for dir != "." && filepath.Base(dir) != "templates" && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
	}
	chart := "CHART"
	if filepath.Base(dir) == "templates" {
		chart = filepath.Dir(dir)
	}
	return &ForeignError{"is a template, as " + shorten(found, 60) + " shows", "render it first, such as with: " + HelmCommand(chart) + toFile, true},
		1 + bytes.Count(text[:at[0]], []byte("\n"))
}
