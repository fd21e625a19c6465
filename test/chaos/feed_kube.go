//go:build linux

package chaos

import (
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/topology"
)

// apiAddress is where the API server listens, inside the node.
const apiAddress = "127.0.0.1:8001"

// kubeFeed is an API server in miniature.
type kubeFeed struct {
	dir  string
	host *topology.Host
	// fields are the fields of the proxy's configuration file.
	fields map[string]string
	*kubeapi.Server
	http *http.Server // nil while it is away
}

// noNodeSetup leaves the settings of the kernel alone.
const noNodeSetup = "{oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}"

func newKubeFeed(dir string, host *topology.Host, d *dataplane) (*kubeFeed, error) {
	f := &kubeFeed{dir: dir, host: host, Server: kubeapi.New()}
	f.fields = map[string]string{
		"hostnameOverride": host.Name, "configHardFail": "false", "clientConnection": "{contentType: application/json}",
		"detectLocal": "{clusterCIDRs: [10.244.0.0/16, \"fd00:10:244::/48\"]}",
		"linux":       noNodeSetup,
	}
	maps.Copy(f.fields, d.fields)
	return f, errors.Join(os.MkdirAll(filepath.Join(dir, "config"), 0o755), f.writeConfig(), f.listen())
}

func (f *kubeFeed) configPath() string { return filepath.Join(f.dir, "config", "config.yaml") }

func (f *kubeFeed) config() []byte { return configOf(f.fields) }

// configOf returns a configuration file.
func configOf(fields map[string]string) []byte {
	var text strings.Builder
	text.WriteString("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n")
	for name, value := range fields {
		text.WriteString(name + ": " + value + "\n")
	}
	return []byte(text.String())
}

// writeConfig replaces the configuration file.
func (f *kubeFeed) writeConfig() error {
	if err := os.WriteFile(f.configPath()+"~", f.config(), 0o600); err != nil {
		return err
	}
	return os.Rename(f.configPath()+"~", f.configPath())
}

func (f *kubeFeed) args() []string {
	return []string{"proxy", "--config", f.configPath(), "--master", "http://" + apiAddress}
}

// listen lets the server accept connections.
func (f *kubeFeed) listen() error {
	var l net.Listener
	err := f.host.Do(func() (err error) { l, err = net.Listen("tcp", apiAddress); return err })
	if err != nil {
		return err
	}
	server := &http.Server{Handler: f.Server}
	f.http = server
	go func() { _ = server.Serve(l) }()
	return nil
}

// leave takes the server away.
func (f *kubeFeed) leave() error {
	if f.http == nil {
		return nil
	}
	err := f.http.Close()
	f.http = nil
	return err
}

// back brings it back, after so long that it does not remember what has changed.
func (f *kubeFeed) back() error {
	f.Forget()
	return f.listen()
}

func (f *kubeFeed) close() error { return f.leave() }

func (f *kubeFeed) put(changed []Object) error { return f.Put(changed) }
