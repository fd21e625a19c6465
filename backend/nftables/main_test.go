//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nft/nfttest"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// dial opens a connection of the test's own.
func dial(t testing.TB, ns *netns.NS) *nft.Conn {
	t.Helper()
	var c *nft.Conn
	netnstest.Do(t, ns, func() (err error) { c, err = nft.Dial(); return err })
	t.Cleanup(func() { c.Close() })
	return c
}

// newBackend opens a dataplane on the real kernel.
func newBackend(t testing.TB, ns place, o Options) *Backend {
	t.Helper()
	return openBackend(t, ns, o, func(c *nft.Conn) kernel { return c })
}

// sharedKernel cannot keep others from changing our tables, as Linux could not before 6.9.
type sharedKernel struct{ kernel }

func (k sharedKernel) Has(f nft.Feature) (bool, error) {
	if f == nft.Hashing {
		return k.kernel.Has(f)
	}
	return false, nil
}

// newSharedBackend opens a dataplane whose tables the test may change.
func newSharedBackend(t testing.TB, ns place, o Options) *Backend {
	t.Helper()
	return openBackend(t, ns, o, func(c *nft.Conn) kernel { return sharedKernel{c} })
}

// place is where functions may be called, such as a [netns.NS] and a [topology.Host].
type place interface{ Do(func() error) error }

// openBackend opens a dataplane on the real kernel with something put in between.
func openBackend(t testing.TB, ns place, o Options, wrap func(*nft.Conn) kernel) *Backend {
	t.Helper()
	var b *Backend
	netnstest.Do(t, ns, func() error {
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
	reconcilers.Forget(b)
	if b.guard != nil {
		b.Close()
		b.guard = nil
	}
}

var reconcilers backendtest.Reconcilers

var (
	apply  = reconcilers.Apply
	verify = backendtest.Verify
)

// foreignCommit changes a table that is not ours.
func foreignCommit(t testing.TB, c *nft.Conn) {
	t.Helper()
	if err := nfttest.ForeignCommitOn(c); err != nil {
		t.Fatal(err)
	}
}

// addDevice makes a device with addresses.
func addDevice(t testing.TB, ns *netns.NS, prefixes ...string) (h *netlink.Handle, dev netlink.Link) {
	t.Helper()
	netnstest.Do(t, ns, func() (err error) { h, err = netlink.NewHandle(); return err })
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

// Records to program.
var (
	families, testNode = recordtest.Families, recordtest.Node()
	addr, prefix       = recordtest.Addr, recordtest.Prefix
	endpointsOf        = recordtest.Endpoints
	forward            = recordtest.Forward
	clusterIPPort      = recordtest.ClusterIPPort
	serviceOf          = recordtest.Service
	dualStack          = recordtest.DualStack
	everyKind          = recordtest.EveryKind
	restrictedService  = recordtest.Restricted
	nodeAddr           = recordtest.NodeAddr
	full, delta        = recordtest.Full, recordtest.Delta
)

// table is the dataplane's table of a family.
func table(f state.Family) nft.Table { return ruleset.Tables()[slices.Index(families, f)] }

// Names that an operator sees.
const (
	tableName   = "switchyard"
	affinitySet = "affinity" // which rules fill
)

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

// frontendKeyOf is the key of a frontend in the sets of its key space. Each field takes a multiple of four bytes.
func frontendKeyOf(p *state.Port, f *state.Frontend) []byte {
	var key []byte
	if f.Kind != state.NodePort {
		key = f.Addr.AsSlice()
	}
	key = binary.BigEndian.AppendUint16(append(key, byte(p.Protocol), 0, 0, 0), f.Port)
	return append(key, 0, 0)
}

// endpointBytes is an endpoint as keys and data have it.
func endpointBytes(e netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(e.Addr().AsSlice(), e.Port()), 0, 0)
}

// numberedSlots is where the slots of the view without a name begin that have the numbers of endpoints as indexes.
const numberedSlots = 1 << 31

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

func (k *faulty) HasAll(t nft.Table, set string, width int, keys []byte) (bool, error) {
	if err := k.fail(1. / 50); err != nil {
		return false, err
	}
	return k.kernel.HasAll(t, set, width, keys)
}

// waysToRead are limits that make small sets be read as large ones are.
var waysToRead = map[string]ruleset.Limits{
	"dumped": usualLimits, "looked up or dumped": {Rewrite: 1 << 30}, "looked up or rewritten": {},
	"some of each": {Find: 2, Rewrite: 6},
}
