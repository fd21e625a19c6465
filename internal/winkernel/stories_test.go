package winkernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

const storiesDir = "../../conformance/stories"

// The reasons why HNS cannot do a story of the conformance suite.
const (
	noPackets  = "it is about flows, or about programs on hosts, and the fake has no packets"
	noSources  = "HNS cannot tell clients apart: frontends with source ranges are not served"
	noChoice   = "HNS serves node ports on all addresses of the node"
	noSCTP     = "HNS has no SCTP"
	noHairpin  = "who reaches itself through DSR keeps its address"
	noSelf     = "HNS has no endpoint at the address of the node itself"
	noUnknowns = "it is about dataplanes that follow the API"
	noDetector = "connections to cluster IPs are all masqueraded, or none: HNS does not distinguish pods"
	noCrowds   = "it needs pods with many addresses"
	noEdge     = "HNS has no edge"
)

// notOnHNS names the stories that HNS cannot do.
var notOnHNS = map[string]string{
	"affinity": noPackets, "affinity_local": noPackets, "affinity_timeout": noPackets, "established": noPackets, "foreign_tables": noPackets,
	"udp_early_client": noPackets, "udp_endpoint_replaced": noPackets, "udp_endpoints_lost": noPackets, "udp_terminating": noPackets, "under_load": noPackets,
	"source_ranges": noSources, "source_ranges_node": noSources,
	"node_ports_all": noChoice, "node_ports_cidr": noChoice, "node_ports_loopback": noChoice, "loopback": noPackets, "tunnel": noPackets, "loopback_node_ports": noChoice, "node_ports_primary": noChoice,
	"sctp": noSCTP, "hairpin": noHairpin, "host_network": noSelf, "unknown_value": noUnknowns,
	"masquerade_bridge": noDetector, "masquerade_detector": noDetector, "masquerade_no_detector": noDetector, "masquerade_node_cidr": noDetector, "masquerade_prefix": noDetector,
	"detector_changes": noDetector, "service_cidrs": noPackets,
	"distribution": noCrowds, "weights": noPackets, "refused_share": noPackets, "zone_weights": noPackets, "slow_start": noPackets, "hash": noPackets, "drain_deadline": noPackets, "ejection": noPackets,
	"edge_local": noEdge, "edge_own_share": noEdge, "edge_restart": noEdge, "edge_source": noEdge, "edge_source_ranges": noEdge, "edge_untranslated": noEdge, "edge_withdrawn": noEdge,
	"least_connections": noPackets, "ping": noPackets, "port_ranges": noPackets,
}

// TestStories plays the stories of the conformance suite on the fake. HNS neither refuses nor drops: both stand for no load balancer here. Of
// what endpoints see as the source, only that is compared which HNS can do: see [story.checkSource].
func TestStories(t *testing.T) {
	files, err := filepath.Glob(storiesDir + "/*.txtar")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d stories, %v", len(files), err)
	}
	params := testscript.Params{
		Setup: func(env *testscript.Env) error {
			s := &story{hosts: map[string]*host{}, services: map[string]*model.Service{}}
			env.Values[storyKey{}] = s
			env.Defer(func() {
				if s.store != nil {
					s.store.Close()
				}
			})
			return nil
		},
		Condition: func(name string) (bool, error) { return false, nil },
		Cmds:      map[string]func(*testscript.TestScript, bool, []string){},
	}
	for name, run := range map[string]func(*story, *testscript.TestScript, []string) error{
		"cluster": (*story).cluster, "pod": (*story).pod, "remove-pod": (*story).removePod, "serve": (*story).serve, "apply": (*story).apply, "delete": (*story).delete,
		"endpoints": (*story).endpoints, "zone": (*story).zone, "shut-down": (*story).shutDown, "restart": (*story).restart, "stop-dataplane": (*story).stop, "start-dataplane": (*story).restart,
		"connect": (*story).connect,
	} {
		params.Cmds[name] = func(ts *testscript.TestScript, _ bool, args []string) {
			if err := run(ts.Value(storyKey{}).(*story), ts, args); err != nil {
				ts.Fatalf("%s: %v", name, err)
			}
		}
	}
	for _, file := range files {
		if notOnHNS[strings.TrimSuffix(filepath.Base(file), ".txtar")] == "" {
			params.Files = append(params.Files, file)
		}
	}
	t.Logf("%d of %d stories", len(params.Files), len(files))
	if len(params.Files)+len(notOnHNS) != len(files) {
		t.Errorf("%d stories are played, and %d named as impossible, of %d", len(params.Files), len(notOnHNS), len(files))
	}
	testscript.Run(t, params)
}

type storyKey struct{}

// host is one of a story's hosts.
type host struct {
	addrs   []netip.Addr // one of each family
	local   bool         // a pod on the node under test
	other   bool         // on the other node
	serving map[string]bool
}

// story is a running story.
type story struct {
	hns           *hnstest.HNS
	store         *store.Store
	sink          model.Sink
	backend       *Backend
	revision      state.Revision
	masqueradeAll bool
	pods          int
	hosts         map[string]*host
	services      map[string]*model.Service // in namespace default
}

func (s *story) cluster(_ *testscript.TestScript, args []string) error {
	addr := netip.MustParseAddr
	s.hosts["node"] = &host{addrs: []netip.Addr{addr("192.0.2.1"), addr("2001:db8:0:1::1")}}
	s.hosts["other"] = &host{addrs: []netip.Addr{addr("192.0.2.2"), addr("2001:db8:0:1::2")}, other: true}
	s.hosts["client"] = &host{addrs: []netip.Addr{addr("192.0.2.100"), addr("2001:db8:0:1::64")}}
	s.masqueradeAll = slices.Contains(args, "masquerade-all")
	macs := map[netip.Addr]string{}
	for _, a := range s.hosts["node"].addrs {
		macs[a] = "00-15-5d-10-00-01"
	}
	s.hns = hnstest.New(plan.Network{Name: networkName, Features: allFeatures, HostMACs: macs})
	s.store = store.New(store.Options{Brain: brain.Config{
		NodeName: "node", MasqueradeAll: s.masqueradeAll, NodeHealth: brain.NodeHealth{Enabled: slices.Contains(args, "node-health"), IgnoreAbove: 50}, LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}})
	s.sink = s.store.Source("story")
	s.sink.Complete()
	if err := s.restart(nil, nil); err != nil {
		return err
	}
	return s.zone(nil, []string{"zone"})
}

func (s *story) zone(_ *testscript.TestScript, args []string) error {
	return s.setNodes(strings.Join(args, ""), "")
}

func (s *story) shutDown(_ *testscript.TestScript, args []string) error {
	return s.setNodes("zone", args[0])
}

func (s *story) setNodes(zone, shutDown string) error {
	health := map[string]model.NodeHealth{shutDown: model.NodeShuttingDown}
	return s.update([]model.Object{
		&model.Node{Name: "node", Zone: zone, Addresses: s.hosts["node"].addrs, Health: health["node"]},
		&model.Node{Name: "other", Zone: "other-zone", Addresses: s.hosts["other"].addrs, Health: health["other"]},
		&model.ServiceCIDR{Name: "all", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}},
	}, nil)
}

func (s *story) restart(*testscript.TestScript, []string) error {
	o, err := Options{Config: Config{NetworkName: networkName, EnableDSR: true}}.complete()
	if err != nil {
		return err
	}
	s.backend, s.revision = open(o, s.hns), 0
	return s.update(nil, nil)
}

func (s *story) stop(*testscript.TestScript, []string) error {
	s.backend = nil
	return nil
}

// update changes the cluster, and applies that.
func (s *story) update(set []model.Object, deleted []model.Ref) error {
	s.sink.Update(set, deleted)
	if s.backend == nil || s.store.Snapshot().Revision() == s.revision {
		return nil
	}
	u, err := s.store.Next(context.Background(), s.revision)
	if err != nil {
		return err
	}
	result, err := s.backend.Apply(context.Background(), u)
	for name, failed := range result.Failed {
		err = errors.Join(err, fmt.Errorf("%v: %w", name, failed))
	}
	s.revision = u.Revision
	return err
}

func (s *story) pod(ts *testscript.TestScript, args []string) error {
	name, serve := args[0], []string{args[0]}
	h := &host{local: true}
	for _, arg := range args[1:] {
		if strings.Contains(arg, "=") {
			h.other = arg == "on=other"
			if h.local = !h.other; !h.other {
				return fmt.Errorf("HNS cannot do %s", arg)
			}
			continue
		}
		serve = append(serve, arg)
	}
	for _, format := range []string{"10.244.%d.%d", "fd00:10:244:%d::%d"} {
		on := 1
		if h.other {
			on = 2
		}
		h.addrs = append(h.addrs, netip.MustParseAddr(fmt.Sprintf(format, on, 10+s.pods)))
	}
	s.pods++
	s.hosts[name] = h
	if h.local {
		s.hns.AddLocal("pod "+name, h.addrs...)
	}
	return s.serve(ts, serve)
}

func (s *story) removePod(_ *testscript.TestScript, args []string) error {
	s.hns.RemoveLocal(s.hosts[args[0]].addrs[0])
	delete(s.hosts, args[0])
	return nil
}

func (s *story) serve(_ *testscript.TestScript, args []string) error {
	h := s.hosts[args[0]]
	if h.serving == nil {
		h.serving = map[string]bool{}
	}
	for _, arg := range args[1:] {
		h.serving[arg] = true
	}
	return nil
}

func (s *story) apply(ts *testscript.TestScript, args []string) error {
	objects, err := read(ts, args)
	for _, o := range objects {
		if svc, ok := o.(*model.Service); ok && svc.Name.Namespace == "default" {
			s.services[svc.Name.Name] = svc
		}
	}
	return errors.Join(err, s.update(objects, nil))
}

func (s *story) delete(ts *testscript.TestScript, args []string) error {
	objects, err := read(ts, args)
	var refs []model.Ref
	for _, o := range objects {
		refs = append(refs, o.Ref())
	}
	return errors.Join(err, s.update(nil, refs))
}

func read(ts *testscript.TestScript, files []string) (list []model.Object, err error) {
	for _, file := range files {
		objects, errs := manifest.Decode(file, []byte(ts.ReadFile(file)))
		err = errors.Join(append(errs, err)...)
		for _, o := range objects {
			object, _, failed := kubeconv.Object(o.Object)
			err = errors.Join(err, failed)
			list = append(list, object)
		}
	}
	return list, err
}

var protocols = map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP, "sctp": state.SCTP}

func (s *story) endpoints(_ *testscript.TestScript, args []string) error {
	var set []model.Object
	for i, family := range []state.Family{state.IPv4, state.IPv6} {
		slice := &model.EndpointSlice{Namespace: "default", Name: fmt.Sprint(args[0], i), Service: args[0], Family: family}
		for _, arg := range args[1:] {
			if strings.Contains(arg, ":") {
				name, rest, named := strings.Cut(arg, "=")
				if !named {
					name, rest = "", arg
				}
				proto, number, _ := strings.Cut(rest, ":")
				port, err := strconv.ParseUint(number, 10, 16)
				if err != nil {
					return err
				}
				slice.Ports = append(slice.Ports, model.EndpointPort{Name: name, Protocol: protocols[proto], Port: uint16(port)})
				continue
			}
			name, marks, _ := strings.Cut(arg, "+")
			h := s.hosts[name]
			if h == nil {
				return fmt.Errorf("there is no host %q", name)
			}
			e := model.Endpoint{Addr: h.addrs[i], Ready: true, Serving: true, NodeName: "node"}
			if h.other {
				e.NodeName = "other"
			}
			for mark := range strings.SplitSeq(marks, "+") {
				key, value, _ := strings.Cut(mark, "=")
				switch key {
				case "unready":
					e.Ready, e.Serving = false, false
				case "terminating":
					e.Ready, e.Terminating = false, true
				case "gone":
					e.Ready, e.Serving, e.Terminating = false, false, true
				case "zone":
					e.ZoneHints = append(e.ZoneHints, value)
				case "node":
					e.NodeHints = append(e.NodeHints, value)
				}
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		set = append(set, slice)
	}
	return s.update(set, nil)
}

// connect: connect FROM PROTO[,PROTO] TO[,TO] EXPECTATION...
func (s *story) connect(_ *testscript.TestScript, args []string) error {
	from := s.hosts[args[0]]
	for proto := range strings.SplitSeq(args[1], ",") {
		for to := range strings.SplitSeq(args[2], ",") {
			addrs, external, err := s.resolve(to)
			if err != nil {
				return err
			}
			for _, dst := range addrs {
				if external && s.splits(dst) && (from.local || from == s.hosts["node"]) {
					continue // clients of this node have the endpoints of those outside: HNS does the same for all
				}
				if err := s.check(from, proto, dst, external, args[3:]); err != nil {
					return fmt.Errorf("%s to %s %v: %w", args[0], proto, dst, err)
				}
			}
		}
	}
	return nil
}

// resolve returns the addresses of a destination, and whether it is a frontend that is no cluster IP.
func (s *story) resolve(text string) (list []netip.AddrPort, external bool, err error) {
	if addr, err := netip.ParseAddrPort(text); err == nil {
		return []netip.AddrPort{addr}, !strings.HasPrefix(text, "10.96") && !strings.HasPrefix(text, "[fd00:10:96:"), nil
	}
	target, kind, _ := strings.Cut(text, "@")
	name, number, _ := strings.Cut(target, ":")
	port, err := strconv.ParseUint(number, 10, 16)
	var addrs []netip.Addr
	switch svc := s.services[name]; {
	case s.hosts[name] != nil:
		addrs, external = s.hosts[name].addrs, true
	case svc == nil:
		err = fmt.Errorf("there is no host or service %q", name)
	case kind == "lb":
		addrs, external = svc.LoadBalancerIPs, true
	case kind == "external":
		addrs, external = svc.ExternalIPs, true
	default:
		addrs = svc.ClusterIPs
	}
	for _, addr := range addrs {
		list = append(list, netip.AddrPortFrom(addr, uint16(port)))
	}
	return list, external, err
}

// splits reports whether clients of this node have other endpoints at dst than those outside.
func (s *story) splits(dst netip.AddrPort) bool {
	for svc := range s.store.Snapshot().Services() {
		for _, p := range svc.Ports {
			for _, f := range p.Frontends {
				same := f.Port == dst.Port() && (f.Addr == dst.Addr() || f.Kind == state.NodePort && slices.Contains(s.hosts["node"].addrs, dst.Addr()))
				if f.Kind != state.ClusterIP && same && !p.External.Inside.Equal(&p.External.Outside) {
					return true
				}
			}
		}
	}
	return false
}

func (s *story) check(from *host, proto string, dst netip.AddrPort, external bool, words []string) error {
	r := s.hns.Trace(protocols[proto], dst)
	if len(r.Broken) > 0 {
		return fmt.Errorf("broken: %v", r.Broken)
	}
	direct := len(r.Endpoints) == 0
	if direct { // to the host itself
		r.Endpoints = []netip.AddrPort{dst}
	}
	var got []string
	for _, e := range r.Endpoints {
		for name, h := range s.hosts {
			if slices.Contains(h.addrs, e.Addr()) && h.serving[fmt.Sprintf("%s:%d", proto, e.Port())] {
				got = append(got, name)
			}
		}
	}
	slices.Sort(got)
	for i, word := range words {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "refused", "dropped":
			if len(got) > 0 {
				return fmt.Errorf("reaches %v, want it %s", got, word)
			}
		case "reaches", "sticks-to-one-of":
			want := strings.Split(words[i+1], ",")
			if slices.Sort(want); !slices.Equal(got, want) {
				return fmt.Errorf("reaches %v, want %v", got, want)
			}
			if key != "reaches" && !r.Sticky && len(want) > 1 {
				return errors.New("clients do not stay with an endpoint")
			}
		case "source":
			if !direct {
				if err := s.checkSource(from, external, r.Source, value); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkSource compares the source address. HNS has one source for all clients of a frontend. Cluster IPs keep the
// client's address unless all is masqueraded, and other frontends treat all clients as clients from outside.
func (s *story) checkSource(from *host, external bool, source netip.Addr, want string) error {
	inside := from.local || from == s.hosts["node"]
	switch {
	case external && inside, !external && !inside && !s.masqueradeAll:
		return nil
	case !source.IsValid() != (want == "kept"):
		return fmt.Errorf("the source is %v, want it %s", source, want)
	}
	return nil
}

// TestImpossibleStories: each story that is named is there.
func TestImpossibleStories(t *testing.T) {
	for name := range notOnHNS {
		if _, err := os.Stat(filepath.Join(storiesDir, name+".txtar")); err != nil {
			t.Error(err)
		}
	}
}
