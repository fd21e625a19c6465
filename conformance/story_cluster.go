//go:build linux

package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// startCluster: cluster [detect=none|cluster-cidr|node-cidr|prefix:P|bridge:DEV] [masquerade-all] [limit-icmp] [node-health]
// [node-ports=primary|all|CIDR,...] [edge=NODE,...].
func (s *story) startCluster(ts *testscript.TestScript, args []string) error {
	if s.cluster != nil {
		return errors.New("there is one already")
	}
	o := clusterOptions{nodePorts: state.NodePortAddresses{Primary: true}}
	detect := cmp.Or(s.dataplane.Detector, "cluster-cidr")
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "masquerade-all":
			o.masqueradeAll = true
		case "node-health":
			o.nodeHealth = brain.NodeHealth{Enabled: true, NotReadyAfter: time.Hour, IgnoreAbove: 50}
		case "limit-icmp":
			o.lab.LimitICMP = true
		case "detect":
			detect = value
		case "edge":
			o.inEdge = strings.Split(value, ",")
		case "node-ports":
			addrs, err := parseNodePorts(value)
			if err != nil {
				return err
			}
			o.nodePorts = addrs
		default:
			return fmt.Errorf("unknown option %q", arg)
		}
	}
	var err error
	if o.detector, err = parseDetector(detect); err != nil {
		return err
	}
	c, err := newCluster(s.ctx, s.dataplane, o)
	if err != nil {
		return err
	}
	s.cluster = c
	for _, host := range []*topology.Host{c.lab.Node(), c.lab.OtherNode(), c.lab.Client()} {
		s.hosts[host.Name] = host
	}
	s.otherNode[c.lab.OtherNode().Name] = true
	return c.update(c.nodes("zone"), nil)
}

func parseNodePorts(value string) (state.NodePortAddresses, error) {
	switch value {
	case "primary":
		return state.NodePortAddresses{Primary: true}, nil
	case "all":
		return state.NodePortAddresses{}, nil
	}
	var addrs state.NodePortAddresses
	for item := range strings.SplitSeq(value, ",") {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return addrs, err
		}
		addrs.CIDRs = append(addrs.CIDRs, prefix)
	}
	return addrs, nil
}

func parseDetector(value string) (state.LocalDetector, error) {
	kind, arg, _ := strings.Cut(value, ":")
	switch kind {
	case "none":
		return state.LocalDetector{}, nil
	case "cluster-cidr":
		return state.LocalDetector{ClusterCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48"),
		}}, nil
	case "node-cidr":
		return state.LocalDetector{NodeCIDR: true}, nil
	case "prefix":
		return state.LocalDetector{InterfacePrefix: arg}, nil
	case "bridge":
		return state.LocalDetector{BridgeInterface: arg}, nil
	}
	return state.LocalDetector{}, fmt.Errorf("unknown detector %q", value)
}

// configure: configure detect=none|cluster-cidr|node-cidr|prefix:P|bridge:DEV | node-ports=primary|all|CIDR,...
func (s *story) configure(_ *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: configure [detect=…] [node-ports=…]")
	}
	next := s.cluster.config
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "detect":
			next.LocalDetector, err = parseDetector(value)
		case "node-ports":
			next.NodePorts, err = parseNodePorts(value)
		default:
			err = fmt.Errorf("unknown option %q", arg)
		}
		if err != nil {
			return err
		}
	}
	return s.cluster.configure(next)
}

// addPod: pod NAME [on=other] [addresses=N] PROTO:PORT...
func (s *story) addPod(_ *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: pod NAME [on=other] [addresses=N] PROTO:PORT…")
	}
	o := topology.PodOptions{Name: args[0]}
	var serve []string
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "on":
			o.OtherNode = value == s.cluster.lab.OtherNode().Name
			if !o.OtherNode && value != s.cluster.lab.Node().Name {
				return fmt.Errorf("there is no node %q", value)
			}
		case "addresses":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			o.Addrs = s.manyAddrs(n)
			s.manyUsed += n
		default:
			serve = append(serve, arg)
		}
	}
	pod, err := s.cluster.lab.AddPod(o)
	if err != nil {
		return err
	}
	s.hosts[pod.Name], s.otherNode[pod.Name] = pod, o.OtherNode
	return s.serve(nil, append([]string{pod.Name}, serve...))
}

// manyAddrs returns n addresses of each family for one pod on the node under test, one family after the other.
func (s *story) manyAddrs(n int) []netip.Addr {
	var list []netip.Addr
	for _, cidr := range s.cluster.lab.Options().NodePodCIDRs {
		bytes := cidr.Addr().AsSlice()
		bytes[len(bytes)-1] = byte(100 + s.manyUsed) // beyond those that pods get by themselves
		addr, _ := netip.AddrFromSlice(bytes)
		for range n {
			list = append(list, addr)
			addr = addr.Next()
		}
	}
	return list
}

// removePod: remove-pod NAME
func (s *story) removePod(_ *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: remove-pod NAME")
	}
	delete(s.hosts, args[0])
	return s.cluster.lab.RemovePod(args[0])
}

// silence: silence HOST...|nobody
//
// From now on, exactly these hosts answer nothing.
func (s *story) silence(_ *testscript.TestScript, args []string) error {
	for name := range s.silent {
		if slices.Contains(args, name) {
			continue
		}
		if err := s.hosts[name].Silence(false); err != nil {
			return err
		}
		delete(s.silent, name)
	}
	for _, name := range args {
		switch {
		case name == "nobody" && len(args) == 1, s.silent[name]:
			continue
		case s.hosts[name] == nil:
			return fmt.Errorf("no host %q; usage: silence HOST…|nobody", name)
		}
		if err := s.hosts[name].Silence(true); err != nil {
			return err
		}
		s.silent[name] = true
	}
	return nil
}

// serve: serve HOST [on=ADDRESS] PROTO:PORT...
func (s *story) serve(_ *testscript.TestScript, args []string) error {
	if len(args) == 0 || s.hosts[args[0]] == nil {
		return fmt.Errorf("no host in %q; usage: serve HOST [on=ADDRESS] PROTO:PORT…", args)
	}
	host := s.hosts[args[0]]
	addrs := host.Addrs
	for _, arg := range args[1:] {
		if on, ok := strings.CutPrefix(arg, "on="); ok {
			addr, err := netip.ParseAddr(on)
			if err != nil {
				return err
			}
			addrs = []netip.Addr{addr}
			continue
		}
		proto, port, err := parseProtoPort(arg)
		if err != nil {
			return err
		}
		for i, addr := range addrs {
			name := serverName(host, i)
			if err := host.Serve(proto, netip.AddrPortFrom(addr, port), name); err != nil {
				return err
			}
			if !slices.Contains(s.servers[host.Name], name) {
				s.servers[host.Name] = append(s.servers[host.Name], name)
			}
		}
	}
	return nil
}

// serverName is the host's name, with a number if it has several addresses of a family: a.1, a.2.
func serverName(host *topology.Host, i int) string {
	if len(host.Addrs) <= 2 {
		return host.Name
	}
	return fmt.Sprintf("%s.%d", host.Name, i%(len(host.Addrs)/2)+1)
}

// apply: apply FILE...
func (s *story) apply(ts *testscript.TestScript, args []string) error {
	objects, err := s.read(ts, args)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if svc, ok := object.(*model.Service); ok && svc.Name.Namespace == "default" {
			if s.hosts[svc.Name.Name] != nil {
				return fmt.Errorf("service %s has the name of a host", svc.Name.Name)
			}
			s.services[svc.Name.Name] = svc
		}
	}
	return s.cluster.update(objects, nil)
}

// delete: delete FILE...
func (s *story) delete(ts *testscript.TestScript, args []string) error {
	objects, err := s.read(ts, args)
	if err != nil {
		return err
	}
	var refs []model.Ref
	for _, object := range objects {
		refs = append(refs, object.Ref())
	}
	return s.cluster.update(nil, refs)
}

// read decodes manifests; anything wrong with one is an error.
func (s *story) read(ts *testscript.TestScript, files []string) ([]model.Object, error) {
	var list []model.Object
	for _, file := range files {
		objects, errs := manifest.Decode(file, []byte(ts.ReadFile(file)))
		if len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
		for _, o := range objects {
			object, ok, err := kubeconv.Object(o.Object)
			if err != nil || !ok {
				return nil, fmt.Errorf("%s: line %d: not an object of the model: %w", file, o.Line, err)
			}
			list = append(list, object)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("there is no object in %q", files)
	}
	return list, nil
}

// zone: zone NAME
func (s *story) zone(_ *testscript.TestScript, args []string) error {
	return s.cluster.update(s.cluster.nodes(strings.Join(args, "")), nil)
}

// shutDown: shut-down node|other|nobody
func (s *story) shutDown(_ *testscript.TestScript, args []string) error {
	nodes := s.cluster.nodes("zone")
	if len(args) != 1 || args[0] != "nobody" && !slices.ContainsFunc(nodes, func(o model.Object) bool { return o.Ref() == nodeRef(args[0]) }) {
		return errors.New("usage: shut-down node|other|nobody")
	}
	for _, o := range nodes {
		if n, ok := o.(*model.Node); ok && n.Name == args[0] {
			n.Health = model.NodeShuttingDown
		}
	}
	return s.cluster.update(nodes, nil)
}

func nodeRef(name string) model.Ref { return model.Ref{Kind: model.KindNode, Name: name} }

// address: address add|remove HOST PREFIX...
func (s *story) address(_ *testscript.TestScript, args []string) error {
	if len(args) < 3 || s.hosts[args[1]] == nil {
		return errors.New("usage: address add|remove HOST PREFIX…")
	}
	change := s.hosts[args[1]].AddAddr
	if args[0] == "remove" {
		change = s.hosts[args[1]].RemoveAddr
	}
	for _, arg := range args[2:] {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return err
		}
		if err := change(prefix); err != nil {
			return err
		}
	}
	return nil
}

// leakLoopback: leak-loopback HOST...
func (s *story) leakLoopback(_ *testscript.TestScript, args []string) error {
	for _, arg := range args {
		if s.hosts[arg] == nil {
			return errors.New("usage: leak-loopback HOST…")
		}
		if err := s.hosts[arg].LeakLoopback(); err != nil {
			return err
		}
	}
	return nil
}

// tunnel: tunnel
func (s *story) tunnel(*testscript.TestScript, []string) error { return s.cluster.lab.Tunnel() }

// checkTunnel: tunnel-is-untouched
func (s *story) checkTunnel(*testscript.TestScript, []string) error {
	flows, err := s.cluster.lab.Node().TranslatedTunnel()
	if err == nil && len(flows) > 0 {
		err = fmt.Errorf("packets between the nodes were translated, as if they were those in them: %q; clear the mark of packets that are masqueraded", flows)
	}
	return err
}

// restart: restart
func (s *story) restart(*testscript.TestScript, []string) error { return s.cluster.restart() }

// stopDataplane: stop-dataplane. The programmed rules stay, and nothing follows changes.
func (s *story) stopDataplane(*testscript.TestScript, []string) error { return s.cluster.halt() }

// startDataplane: start-dataplane
func (s *story) startDataplane(*testscript.TestScript, []string) error {
	if err := s.cluster.start(); err != nil {
		return err
	}
	return s.cluster.wait()
}

// run: run HOST PROGRAM ARG...; its output is for stdout and cmp.
func (s *story) run(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 || s.hosts[args[0]] == nil {
		return errors.New("usage: run HOST PROGRAM ARG…")
	}
	cmd := exec.CommandContext(s.ctx, args[1], args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	return s.hosts[args[0]].Do(cmd.Run)
}

// pause: pause DURATION
func (s *story) pause(_ *testscript.TestScript, args []string) error {
	d, err := time.ParseDuration(strings.Join(args, ""))
	if err != nil {
		return err
	}
	return s.sleep(d)
}

func parseProtocol(text string) (state.Protocol, error) {
	switch text {
	case "tcp":
		return state.TCP, nil
	case "udp":
		return state.UDP, nil
	case "sctp":
		return state.SCTP, nil
	}
	return 0, fmt.Errorf("unknown protocol %q: use tcp, udp or sctp", text)
}

func parseProtoPort(text string) (state.Protocol, uint16, error) {
	name, number, _ := strings.Cut(text, ":")
	proto, err := parseProtocol(name)
	if err != nil {
		return 0, 0, err
	}
	port, err := strconv.ParseUint(number, 10, 16)
	return proto, uint16(port), err
}

// makeUnknown: unknown SERVICE.
func (s *story) makeUnknown(_ *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: unknown SERVICE")
	}
	s.cluster.makeUnknown(state.ServiceName{Namespace: "default", Name: args[0]})
	return nil
}

// needs: needs FEATURE
//
// The story ends here if the dataplane is not known to program the feature of records.
func (s *story) needs(_ *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: needs FEATURE")
	}
	for feature := range state.AllFeatures.Each {
		if feature.String() != args[0] {
			continue
		}
		if !s.cluster.programs(feature) {
			s.skip("the dataplane does not program ", feature)
		}
		return nil
	}
	return fmt.Errorf("unknown feature %q; there are %v", args[0], state.AllFeatures)
}
