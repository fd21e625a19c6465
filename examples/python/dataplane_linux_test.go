package python_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// TestDataplane sends packets through the dataplane in Python: those of three stories. 'switchyard conformance' has all.
func TestDataplane(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	program := python(t, "dataplane.py", "--target")
	for _, tool := range []string{"nft", "conntrack", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("dataplane.py needs the program %s: apt-get install nftables conntrack iproute2", tool)
		}
	}
	stories := []string{"stories/cluster_ip", "stories/loopback_node_ports", "stories/unknown_value"}
	err := conformance.Check(t.Context(), conformance.Dataplane{
		Name: "dataplane.py",
		Follow: func(ctx context.Context, api string, s conformance.Settings) error {
			cmd := exec.CommandContext(ctx, program.Path, append(slices.Clone(program.Args[1:]), api)...)
			cmd.Stdout, cmd.Stderr = s.Output, s.Output
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			return cmd.Run()
		},
	}, conformance.CheckOptions{
		Select: func(name string) bool { return slices.Contains(stories, name) },
		OnResult: func(r conformance.Result) {
			if r.Outcome != conformance.Passed {
				t.Errorf("%s: %s", r.Name, r.Log)
			}
		},
	})
	if err != nil {
		t.Error(err)
	}
}
