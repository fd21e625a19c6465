package python_test

import (
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// TestFault has the dataplane in Python judge Services: one that is not valid is at fault by itself, and ends nothing else.
func TestFault(t *testing.T) {
	const judge = `
import sys, dataplane, localnet_pb2 as api
for text in sys.argv[1:]:
    print(dataplane.fault(api.ServiceEndpoints.FromString(bytes.fromhex(text))))
`
	const sources = "port 'web': a frontend is not known here"
	args, want := []string{"-c", judge}, []string{}
	for _, c := range []struct {
		family  localnetv1.Family
		address []byte
		length  uint32
		want    string
	}{
		{localnetv1.Family_FAMILY_IPV4, []byte{10, 1, 0, 0}, 16, "None"},
		{localnetv1.Family_FAMILY_IPV4, []byte{0, 0, 0, 0}, 0, "None"},
		{localnetv1.Family_FAMILY_IPV4, []byte{10, 1, 2, 3}, 16, sources}, // it has bits beyond its length
		{localnetv1.Family_FAMILY_IPV4, []byte{10, 1, 2, 3}, 0, sources},
		{localnetv1.Family_FAMILY_IPV4, []byte{10, 1, 2, 3}, 33, sources},
		{localnetv1.Family_FAMILY_IPV4, []byte{10, 1, 2}, 16, sources},
		{localnetv1.Family_FAMILY_IPV6, netip.MustParseAddr("2001:db8::").AsSlice(), 32, "None"},
		{localnetv1.Family_FAMILY_IPV6, netip.MustParseAddr("2001:db8::1").AsSlice(), 127, sources},
		{localnetv1.Family_FAMILY_IPV6, netip.MustParseAddr("::ffff:10.1.0.0").AsSlice(), 112, sources},
	} {
		traffic := &localnetv1.Traffic{
			Inside:  &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT},
			Outside: &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT}, Masquerade: localnetv1.Masquerade_MASQUERADE_NEVER,
		}
		address := []byte{192, 0, 2, 1}
		if c.family == localnetv1.Family_FAMILY_IPV6 {
			address = netip.MustParseAddr("2001:db8:1::1").AsSlice()
		}
		service, err := proto.Marshal(&localnetv1.ServiceEndpoints{
			Namespace: "shop", Name: "web",
			SourceRanges: []*localnetv1.SourceRanges{{Ranges: []*localnetv1.Prefix{{Address: c.address, Length: c.length}}}},
			Ports: []*localnetv1.Port{{
				Name: "web", Family: c.family, Protocol: localnetv1.Protocol_PROTOCOL_TCP, Internal: traffic, External: traffic,
				Frontends: []*localnetv1.Frontend{{
					Kind: localnetv1.FrontendKind_FRONTEND_KIND_LOAD_BALANCER, Address: address, Port: 80, Restricted: true, SourceRanges: new(uint32(0)),
				}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		args, want = append(args, hex.EncodeToString(service)), append(want, c.want)
	}
	out, err := python(t, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(out)), "\n")); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// TestDataplane sends the packets of three stories through the dataplane in Python. 'switchyard conformance' runs all
// stories.
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
