//go:build linux

package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
