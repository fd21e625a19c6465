package netnstest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
)

// Output runs a command in a network namespace and returns what it writes to its standard output. The test fails if the command does.
func Output(t testing.TB, ns *netns.NS, cmd *exec.Cmd) string {
	t.Helper()
	var out, warnings strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &warnings
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), warnings.String())
	}
	return out.String()
}

// NFT runs the nft tool in a network namespace and returns its output. It skips the test if there is no nft.
func NFT(t testing.TB, ns *netns.NS, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft tool is not installed")
	}
	return Output(t, ns, exec.Command(path, args...))
}
