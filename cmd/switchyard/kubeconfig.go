package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/source/kube"
)

// kubeconfigUsage is the help text of --kubeconfig of an operator's command. Processes that run on a node do not read a person's files.
const kubeconfigUsage = "kubeconfig of the API server (default: the first of: the kubeconfig of the configuration, $KUBECONFIG, ~/.kube/config, the pod's service account)"

// operatorConnection is kubeConnection for an operator's command. If neither the flags nor the configuration name an API server, it connects
// to the API server that kubectl would use. ok reports whether there is one.
func operatorConnection(c *config.Config, master string) (connection kube.Connection, ok bool, err error) {
	connection = kubeConnection(c, master)
	if connection.Kubeconfig != "" || connection.Master != "" {
		return connection, true, nil
	}
	connection.Kubeconfigs, err = kubectlFiles()
	return connection, len(connection.Kubeconfigs) > 0 || os.Getenv("KUBERNETES_SERVICE_HOST") != "", err
}

// kubectlFiles are the kubeconfig files that kubectl reads: those in $KUBECONFIG that exist, or ~/.kube/config if it does.
func kubectlFiles() ([]string, error) {
	listed := os.Getenv("KUBECONFIG")
	paths := filepath.SplitList(listed)
	if listed == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, nil // without a home there is no such file
		}
		paths = []string{filepath.Join(home, ".kube", "config")}
	}
	var found []string
	for _, path := range paths {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = append(found, path)
	}
	if listed != "" && len(found) == 0 {
		return nil, fmt.Errorf("$KUBECONFIG is %s, but there is no such file: correct it, unset it, or name a file with --kubeconfig", strings.TrimSpace(listed))
	}
	return found, nil
}
