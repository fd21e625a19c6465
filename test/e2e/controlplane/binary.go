//go:build linux

package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// BinaryVariable is the environment variable that names the binary built from test/e2e/upstream, if it is not in its usual place.
const BinaryVariable = "SWITCHYARD_UPSTREAM"

// usualPlace is where `make upstream` puts a link to the binary, relative to the repository.
const usualPlace = ".cache/upstream/upstream"

// Binary returns the path of the program that is etcd, kube-apiserver, kube-controller-manager or kube-proxy, depending on its
// first argument.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, usualPlace)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find %s: %w; build it with: make upstream", usualPlace, errors.ErrUnsupported)
		}
	}
})

// Release returns the release of Kubernetes that the program is, such as v1.37.2.
func Release() (string, error) {
	program, err := Binary()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(program, "kube-proxy", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "Kubernetes ")), nil
}
