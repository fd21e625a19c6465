//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

func newNS(t testing.TB) *netns.NS {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func inNS(t testing.TB, ns *netns.NS, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// dial opens a connection of the test's own.
func dial(t testing.TB, ns *netns.NS) *nft.Conn {
	t.Helper()
	var c *nft.Conn
	inNS(t, ns, func() (err error) { c, err = nft.Dial(); return err })
	t.Cleanup(func() { c.Close() })
	return c
}

// newBackend opens a dataplane on the real kernel.
func newBackend(t testing.TB, ns *netns.NS, o Options) *Backend {
	t.Helper()
	return openBackend(t, ns, o, func(c *nft.Conn) kernel { return c })
}

// sharedKernel cannot keep others from changing our tables, as Linux could not before 6.9.
type sharedKernel struct{ kernel }

func (sharedKernel) Has(nft.Feature) (bool, error) { return false, nil }

// newSharedBackend opens a dataplane whose tables the test may change.
func newSharedBackend(t testing.TB, ns *netns.NS, o Options) *Backend {
	t.Helper()
	return openBackend(t, ns, o, func(c *nft.Conn) kernel { return sharedKernel{c} })
}

// openBackend opens a dataplane on the real kernel with something put in between.
func openBackend(t testing.TB, ns *netns.NS, o Options, wrap func(*nft.Conn) kernel) *Backend {
	t.Helper()
	var b *Backend
	inNS(t, ns, func() error {
		c, err := nft.Dial()
		if err != nil {
			return err
		}
		more, err := nft.Dial()
		if err != nil {
			return errors.Join(err, c.Close())
		}
		b, err = open(t.Context(), o, wrap(c), more)
		return err
	})
	t.Cleanup(func() { closeBackend(b) })
	return b
}

// closeBackend closes a dataplane that may be closed already.
func closeBackend(b *Backend) {
	if b.guard != nil {
		b.Close()
		b.guard = nil
	}
}

func apply(t testing.TB, b *Backend, u *state.Update) backend.Result {
	t.Helper()
	r, err := b.Apply(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func verify(t testing.TB, b *Backend) backend.Result {
	t.Helper()
	r, err := b.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// foreignCommit changes a table that is not ours.
func foreignCommit(t testing.TB, c *nft.Conn) {
	t.Helper()
	other := nft.Table{Family: nft.IPv4, Name: "somebody-else"}
	var b nft.Batch
	b.AddTable(other)
	b.DeleteTable(other)
	b.AddTable(other)
	if err := c.Commit(&b); err != nil {
		t.Fatal(err)
	}
}

// nftCommand runs the nft tool in ns. The test is skipped if there is none.
func nftCommand(t testing.TB, ns *netns.NS, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft tool is not installed")
	}
	var out, warnings strings.Builder
	inNS(t, ns, func() error {
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = &out, &warnings // 1.0.6 warns that its JSON has no word for "update @map"
		err = cmd.Run()
		return nil
	})
	if err != nil {
		t.Fatalf("nft %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), warnings.String())
	}
	return out.String()
}

// addDevice makes a device with addresses.
func addDevice(t testing.TB, ns *netns.NS, prefixes ...string) (h *netlink.Handle, dev netlink.Link) {
	t.Helper()
	inNS(t, ns, func() (err error) { h, err = netlink.NewHandle(); return err })
	t.Cleanup(h.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "veth-a"
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "veth-b"
	if err := h.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetUp(veth); err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes {
		if err := h.AddrAdd(veth, deviceAddr(t, p)); err != nil {
			t.Fatal(err)
		}
	}
	return h, veth
}

func deviceAddr(t testing.TB, prefix string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if a.IP.To4() == nil {
		a.Flags = syscall.IFA_F_NODAD
	}
	return a
}

var testNode = &state.Node{
	Name:         "node",
	Addresses:    []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")},
	PodCIDRs:     []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")},
	ServiceCIDRs: []netip.Prefix{prefix("10.96.0.0/16"), prefix("fd00:10:96::/112")},
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// endpointsOf returns endpoints n to n+count-1 of a family.
func endpointsOf(f state.Family, n, count int) []state.Endpoint {
	base := netip.AddrFrom4([4]byte{10, 244, 0, 0})
	if f == state.IPv6 {
		base = addr("fd00:10:244::")
	}
	list := make([]state.Endpoint, 0, count)
	for i := n; i < n+count; i++ {
		b := base.AsSlice()
		b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
		a, _ := netip.AddrFromSlice(b)
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
	}
	return list
}

func forward(eps []state.Endpoint) state.Route {
	if len(eps) == 0 {
		return state.Route{Verdict: state.Reject}
	}
	return state.Route{Verdict: state.Forward, Endpoints: eps}
}

// clusterIPPort is a port with a ClusterIP that is made of n.
func clusterIPPort(f state.Family, proto state.Protocol, n int, eps []state.Endpoint) state.Port {
	ip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	if f == state.IPv6 {
		b := addr("fd00:10:96::").As16()
		b[14], b[15] = byte(n>>8), byte(n)
		ip = netip.AddrFrom16(b)
	}
	r := forward(eps)
	return state.Port{
		Name: fmt.Sprintf("p%d", n), Protocol: proto, Family: f,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: ip, Port: 80}},
		Internal:  state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeUnlessPod},
	}
}

func serviceOf(name string, ports ...state.Port) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "test", Name: name}, Ports: ports}
	slices.SortFunc(s.Ports, func(a, b state.Port) int { return a.Compare(&b) })
	return s
}

// dualStack is a service with n endpoints in both families, and clients that stick for some time, if it is not 0.
func dualStack(name string, n, endpoints int, sticky time.Duration) *state.Service {
	var ports []state.Port
	for _, f := range families {
		p := clusterIPPort(f, state.TCP, n, endpointsOf(f, n, endpoints))
		p.Affinity = sticky
		ports = append(ports, p)
	}
	return serviceOf(name, ports...)
}

// everyKind is a service with frontends of all kinds whose outside clients are treated differently.
func everyKind(name string, n, endpoints int, sticky time.Duration) *state.Service {
	s := dualStack(name, n, endpoints, sticky)
	for i := range s.Ports {
		p := &s.Ports[i]
		lb, ext := netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), netip.AddrFrom4([4]byte{198, 51, 100, byte(n)})
		sources := []netip.Prefix{prefix("0.0.0.0/0"), prefix("192.0.2.0/24"), prefix("192.0.2.7/32")}
		if p.Family == state.IPv6 {
			lb, ext = addr(fmt.Sprintf("2001:db8:113::%x", n)), addr(fmt.Sprintf("2001:db8:51::%x", n))
			sources = []netip.Prefix{prefix("::/0"), prefix("2001:db8::/32"), prefix("2001:db8::7/128")}
		}
		p.Frontends = append(p.Frontends,
			state.Frontend{Kind: state.ExternalIP, Addr: ext, Port: 80},
			state.Frontend{Kind: state.LoadBalancer, Addr: lb, Port: 80, Restricted: true, Sources: sources[1:]},
			state.Frontend{Kind: state.LoadBalancer, Addr: lb, Port: 81, Restricted: true, Sources: sources},
			state.Frontend{Kind: state.NodePort, Port: uint16(30000 + n)},
		)
		local := forward(p.Internal.Inside.Endpoints[:min(1, endpoints)])
		if endpoints == 0 {
			local.Verdict = state.Drop
		}
		p.External = state.Traffic{Inside: p.Internal.Inside, Outside: local, Masquerade: state.MasqueradeNode}
	}
	return s
}

func full(services ...*state.Service) *state.Update {
	services = slices.Clone(services)
	slices.SortFunc(services, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	return &state.Update{Full: true, Node: testNode, Changed: services}
}

func delta(changed ...*state.Service) *state.Update {
	u := full(changed...)
	u.Full = false
	return u
}

// dump is all that our tables hold of elements, except for remembered clients, as text.
func dump(t testing.TB, c *nft.Conn) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, f := range families {
		for set, elems := range dumpTable(t, c, f) {
			if set == affinitySet {
				continue
			}
			for _, e := range elems {
				all[fmt.Sprintf("%v %s %x-%x", f, set, e.Key, e.KeyEnd)] = fmt.Sprintf("%x", e.Data)
			}
		}
	}
	return all
}

func dumpTable(t testing.TB, c *nft.Conn, f state.Family) map[string][]nft.Elem {
	t.Helper()
	sets := map[string][]nft.Elem{}
	sk, err := c.ReadSkeleton(table(f))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sk.Sets() {
		if sets[name], err = c.Elems(table(f), name); err != nil {
			t.Fatal(err)
		}
	}
	return sets
}

// changesBetween counts elements that are in one dump only, or differ.
func changesBetween(a, b map[string]string) (only []string) {
	for k, v := range a {
		if w, ok := b[k]; !ok {
			only = append(only, "-"+k)
		} else if v != w {
			only = append(only, "~"+k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			only = append(only, "+"+k)
		}
	}
	slices.Sort(only)
	return only
}

// faulty is a kernel of which operations fail now and then. A failed commit may have been carried out, as if its answer had
// been lost.
type faulty struct {
	kernel
	rng  *rand.Rand
	rate float64
	// failures counts what failed, lost those commits of it that were carried out.
	failures, lost int
}

var errInjected = errors.New("injected")

func (k *faulty) fail(times float64) error {
	if k.rng.Float64() >= k.rate*times {
		return nil
	}
	k.failures++
	errnos := []syscall.Errno{syscall.ENOBUFS, syscall.EINTR, syscall.ENOMEM, syscall.EPERM}
	return fmt.Errorf("%w: %w", errInjected, errnos[k.rng.IntN(len(errnos))])
}

func (k *faulty) Commit(b *nft.Batch) error {
	failure := k.fail(1)
	if failure == nil || k.rng.IntN(2) == 0 {
		if err := k.kernel.Commit(b); err != nil {
			return err
		}
		if failure != nil {
			k.lost++
		}
	}
	return failure
}

func (k *faulty) Table(t nft.Table) (nft.TableInfo, error) {
	if err := k.fail(1); err != nil {
		return nft.TableInfo{}, err
	}
	return k.kernel.Table(t)
}

func (k *faulty) HasTable(t nft.Table) (bool, error) {
	if err := k.fail(1); err != nil {
		return false, err
	}
	return k.kernel.HasTable(t)
}

func (k *faulty) ReadSkeleton(t nft.Table) (*nft.Skeleton, error) {
	if err := k.fail(1); err != nil {
		return nil, err
	}
	return k.kernel.ReadSkeleton(t)
}

func (k *faulty) Elems(t nft.Table, set string) ([]nft.Elem, error) {
	if err := k.fail(1. / 50); err != nil { // there are about a hundred sets to read
		return nil, err
	}
	return k.kernel.Elems(t, set)
}

func (k *faulty) Find(t nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error {
	if err := k.fail(1. / 50); err != nil {
		return err
	}
	return k.kernel.Find(t, set, width, keys, found)
}

// waysToRead are limits that make small sets be read as large ones are.
var waysToRead = map[string]readLimits{
	"dumped": usualReadLimits, "looked up or dumped": {find: 0, rewrite: 1 << 30}, "looked up or rewritten": {find: 0, rewrite: 0},
	"some of each": {find: 2, rewrite: 6},
}

// splitSlotKey takes the index off the key of a slot, and leaves what is the frontend's key, in the common view.
func splitSlotKey(k elementKey) (frontend elementKey, index uint32) {
	index = binary.NativeEndian.Uint32(k.key[frontendLen(k.family, k.set.space):])
	return k.frontend(), index
}
