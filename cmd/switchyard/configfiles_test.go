package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// TestFilesOfDataplanes: what programs a node takes the files of single dataplanes, and what does not says where the fields belong.
func TestFilesOfDataplanes(t *testing.T) {
	dir := t.TempDir()
	path, service := filepath.Join(dir, "nft.yaml"), filepath.Join(dir, "service.yaml")
	for name, text := range map[string]string{
		path:    "apiVersion: switchyard.net/v1alpha1\nkind: NFTablesConfiguration\nmasqueradeBit: 3\n",
		service: "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, stderr bytes.Buffer
	if code := run(t.Context(), []string{"run", "--source", service, "--node", "a", "--dry-run", "--config", path}, &out, &stderr); code != cli.ExitOK {
		t.Errorf("run ends with %d: %s", code, &stderr)
	}
	c, _, err := parse(t, "--config="+path).config()
	if err != nil || c.Mode != "nftables" || c.MasqueradeBit() != 3 {
		t.Errorf("proxy goes by %+v, %v", c, err)
	}
	stderr.Reset()
	code := run(t.Context(), []string{"serve", "--source", service, "--node", "a", "--config", path}, &out, &stderr)
	if text := stderr.String(); code != cli.ExitError || !strings.Contains(text, "in the section nftables of a KubeProxyConfiguration") {
		t.Errorf("serve ends with %d: %s", code, text)
	}
}
