package client

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// Check returns the faults of a service, nil if all of it can be programmed. The error names the service and, for each
// invalid port, the first invalid field. An invalid port must be left alone: a newer server may give it a meaning.
// [CheckPort] decides which ports are valid.
func Check(s *localnetv1.ServiceEndpoints) error {
	var errs []error
	if s.GetName() == "" || s.GetNamespace() == "" {
		errs = append(errs, errors.New("the name or namespace is empty"))
	}
	sources := newSources(s)
	for _, p := range s.GetPorts() {
		if err := sources.checkPort(p); err != nil {
			errs = append(errs, err)
		}
	}
	if s.GetHealthCheck() != nil {
		if err := checkPortNumber("health_check.port", s.GetHealthCheck().GetPort()); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("service %s: %w", NameOf(s), errors.Join(errs...))
}

// CheckPort returns the fault of a port of a service, nil if the port can be programmed. All enums must be known, all
// addresses must be of the port's family, indices must be in range, and required fields must be set. The error names
// the port and the field. Each call checks the lists of source ranges that the port names; Check checks each list once.
func CheckPort(s *localnetv1.ServiceEndpoints, p *localnetv1.Port) error {
	return newSources(s).checkPort(p)
}

// sources are the lists of a service that frontends are restricted to: ports may share them, and each is looked at once.
type sources struct {
	lists  []*localnetv1.SourceRanges
	checks []*sourceCheck // by index, nil of lists that no frontend has named yet
}

// sourceCheck is the result for one list: the family of all its ranges, or its fault.
type sourceCheck struct {
	family localnetv1.Family
	err    error
}

func newSources(s *localnetv1.ServiceEndpoints) *sources {
	lists := s.GetSourceRanges()
	return &sources{lists, make([]*sourceCheck, len(lists))}
}

func (s *sources) checkPort(p *localnetv1.Port) error {
	if err := s.port(p); err != nil {
		return fmt.Errorf("port %q %s %s: %w", p.GetName(), p.GetProtocol(), p.GetFamily(), err)
	}
	return nil
}

func (s *sources) port(p *localnetv1.Port) error {
	if err := checkEnum("protocol", p.GetProtocol(), localnetv1.Protocol_name); err != nil {
		return err
	}
	if err := checkEnum("family", p.GetFamily(), localnetv1.Family_name); err != nil {
		return err
	}
	if len(p.GetFrontends()) == 0 {
		return errors.New("frontends: there are none")
	}
	var internal, external bool
	for i, f := range p.GetFrontends() {
		if err := s.frontend(f, p.GetFamily()); err != nil {
			return fmt.Errorf("frontends[%d].%w", i, err)
		}
		isInternal := f.GetKind() == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP
		internal, external = internal || isInternal, external || !isInternal
	}
	if err := checkKnown("balance", p.GetBalance(), localnetv1.Balance_name); err != nil {
		return err
	}
	ranges := p.GetFrontends()[0].GetLastPort() != 0
	for i, f := range p.GetFrontends() {
		if (f.GetLastPort() != 0) != ranges {
			return fmt.Errorf("frontends[%d].last_port: %d, but frontends[0] has %d", i, f.GetLastPort(), p.GetFrontends()[0].GetLastPort())
		}
	}
	for i, e := range p.GetEndpoints() {
		if err := checkAddress("address", e.GetAddress(), p.GetFamily()); err != nil {
			return fmt.Errorf("endpoints[%d].%w", i, err)
		}
		if ranges {
			if e.GetPort() != 0 {
				return fmt.Errorf("endpoints[%d].port: %d, but the frontends are ranges", i, e.GetPort())
			}
		} else if err := checkPortNumber("port", e.GetPort()); err != nil {
			return fmt.Errorf("endpoints[%d].%w", i, err)
		}
	}
	if internal {
		if err := checkTraffic(p.GetInternal(), len(p.GetEndpoints())); err != nil {
			return fmt.Errorf("internal.%w", err)
		}
	}
	if external {
		if err := checkTraffic(p.GetExternal(), len(p.GetEndpoints())); err != nil {
			return fmt.Errorf("external.%w", err)
		}
	}
	if err := checkIndices("lingering", p.GetLingering(), len(p.GetEndpoints())); err != nil {
		return err
	}
	return checkEdge(p)
}

func (s *sources) frontend(f *localnetv1.Frontend, family localnetv1.Family) error {
	if err := checkEnum("kind", f.GetKind(), localnetv1.FrontendKind_name); err != nil {
		return err
	}
	if f.GetKind() == localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT {
		if len(f.GetAddress()) > 0 {
			return errors.New("address: a node port has none of its own")
		}
	} else if err := checkAddress("address", f.GetAddress(), family); err != nil {
		return err
	}
	if err := checkPortNumber("port", f.GetPort()); err != nil {
		return err
	}
	if last := f.GetLastPort(); last != 0 && (last > 65535 || last <= f.GetPort()) {
		return fmt.Errorf("last_port: %d is not from %d to 65535", last, f.GetPort()+1)
	}
	if f.GetPing() && f.GetKind() == localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT {
		return errors.New("ping: a node port has no address that could answer")
	}
	if f.SourceRanges == nil {
		return nil
	}
	index := f.GetSourceRanges()
	if !f.GetRestricted() {
		return errors.New("source_ranges: it is set, but restricted is not")
	}
	if uint64(index) >= uint64(len(s.lists)) {
		return fmt.Errorf("source_ranges: there is no list %d; the service has %d", index, len(s.lists))
	}
	known := s.checks[index]
	if known == nil {
		known = new(sourceCheck)
		known.family, known.err = checkRanges(s.lists[index].GetRanges())
		s.checks[index] = known
	}
	if known.err != nil {
		return fmt.Errorf("source_ranges: list %d: %w", index, known.err)
	}
	if known.family != family {
		return fmt.Errorf("source_ranges: list %d is of the family %s, not of the port's", index, known.family)
	}
	return nil
}

// checkRanges returns the family of all ranges of a list.
func checkRanges(ranges []*localnetv1.Prefix) (family localnetv1.Family, err error) {
	if len(ranges) == 0 {
		return family, errors.New("ranges: there are none")
	}
	family = localnetv1.Family_FAMILY_IPV6
	if Addr(ranges[0].GetAddress()).Is4() {
		family = localnetv1.Family_FAMILY_IPV4
	}
	for i, r := range ranges {
		if err := checkAddress("address", r.GetAddress(), family); err != nil {
			return family, fmt.Errorf("ranges[%d].%w", i, err)
		}
		if prefix := Prefix(r); !prefix.IsValid() {
			return family, fmt.Errorf("ranges[%d].length: %d bits are too many for %s", i, r.GetLength(), Addr(r.GetAddress()))
		} else if prefix != prefix.Masked() {
			return family, fmt.Errorf("ranges[%d].address: %s is not masked", i, prefix)
		}
	}
	return family, nil
}

func checkTraffic(t *localnetv1.Traffic, endpoints int) error {
	for _, r := range []struct {
		field string
		*localnetv1.Route
	}{{"inside", t.GetInside()}, {"outside", t.GetOutside()}} {
		if err := checkRoute(r.Route, endpoints); err != nil {
			return fmt.Errorf("%s.%w", r.field, err)
		}
	}
	return checkEnum("masquerade", t.GetMasquerade(), localnetv1.Masquerade_name)
}

func checkRoute(r *localnetv1.Route, endpoints int) error {
	if err := checkEnum("verdict", r.GetVerdict(), localnetv1.Verdict_name); err != nil {
		return err
	}
	if forward := r.GetVerdict() == localnetv1.Verdict_VERDICT_FORWARD; forward != (len(r.GetEndpoints()) > 0) {
		return fmt.Errorf("verdict: %s with %d endpoints", r.GetVerdict(), len(r.GetEndpoints()))
	}
	if err := checkIndices("endpoints", r.GetEndpoints(), endpoints); err != nil {
		return err
	}
	return checkWeights(r)
}

func checkWeights(r *localnetv1.Route) error {
	weights := r.GetWeights()
	if len(weights) == 0 && r.GetRefusedWeight() != 0 {
		return fmt.Errorf("refused_weight: %d without weights", r.GetRefusedWeight())
	}
	if len(weights) != 0 && len(weights) != len(r.GetEndpoints()) {
		return fmt.Errorf("weights: there are %d for %d endpoints", len(weights), len(r.GetEndpoints()))
	}
	for i, w := range weights {
		if w < 1 || w > 65535 {
			return fmt.Errorf("weights[%d]: %d is not from 1 to 65535", i, w)
		}
	}
	return nil
}

// checkEnum refuses values that are not set or not known.
func checkEnum[E interface {
	~int32
	fmt.Stringer
}](field string, value E, known map[int32]string) error {
	if value == 0 {
		return fmt.Errorf("%s: it is not set", field)
	}
	return checkKnown(field, value, known)
}

// checkKnown refuses values that are not known.
func checkKnown[E ~int32](field string, value E, known map[int32]string) error {
	if _, ok := known[int32(value)]; !ok {
		return fmt.Errorf("%s: %d is not known here: perhaps the server is newer, and this program must be updated", field, int32(value))
	}
	return nil
}

func checkAddress(field string, address []byte, family localnetv1.Family) error {
	addr := Addr(address)
	switch {
	case !addr.IsValid():
		return fmt.Errorf("%s: %d bytes make no address", field, len(address))
	case addr.Is4() != (family == localnetv1.Family_FAMILY_IPV4) || addr.Is4In6():
		return fmt.Errorf("%s: %s is not of the family %s", field, addr, family)
	}
	return nil
}

func checkPortNumber(field string, port uint32) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("%s: %d is not from 1 to 65535", field, port)
	}
	return nil
}

// checkIndices makes sure that indices lead to endpoints, and to none twice.
func checkIndices(field string, indices []uint32, endpoints int) error {
	for i, index := range indices {
		if uint64(index) >= uint64(endpoints) {
			return fmt.Errorf("%s[%d]: there is no endpoint %d, only %d", field, i, index, endpoints)
		}
		if i > 0 && index <= indices[i-1] {
			return fmt.Errorf("%s[%d]: %d does not ascend from %d", field, i, index, indices[i-1])
		}
	}
	return nil
}

// Addr returns an address of 4 or 16 bytes, the zero Addr if it has another length.
func Addr(address []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(address)
	return addr
}

// AddrPort returns the address of an endpoint or frontend. It is not valid for a frontend of kind NODE_PORT, which has only a
// port, nor for what [Check] would refuse.
func AddrPort(e interface {
	GetAddress() []byte
	GetPort() uint32
}) netip.AddrPort {
	port := e.GetPort()
	if port > 65535 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(Addr(e.GetAddress()), uint16(port))
}

// Prefix returns a range of addresses, the zero Prefix for what [Check] would refuse.
func Prefix(p *localnetv1.Prefix) netip.Prefix {
	prefix := netip.PrefixFrom(Addr(p.GetAddress()), int(p.GetLength()))
	if !prefix.IsValid() {
		return netip.Prefix{}
	}
	return prefix
}

// SourceRanges returns the clients that a frontend of a service admits if it is restricted. It returns none if it admits nobody, and for an
// index that leads nowhere, which [Check] would refuse.
func SourceRanges(s *localnetv1.ServiceEndpoints, f *localnetv1.Frontend) []*localnetv1.Prefix {
	lists := s.GetSourceRanges()
	if i := f.GetSourceRanges(); f != nil && f.SourceRanges != nil && uint64(i) < uint64(len(lists)) {
		return lists[i].GetRanges()
	}
	return nil
}

// Endpoints returns the endpoints of a port at indices: the endpoints of a route, or the port's lingering endpoints. It
// leaves out indices that are out of range, which [Check] refuses.
func Endpoints(p *localnetv1.Port, indices []uint32) iter.Seq[*localnetv1.Endpoint] {
	return func(yield func(*localnetv1.Endpoint) bool) {
		all := p.GetEndpoints()
		for _, i := range indices {
			if uint64(i) < uint64(len(all)) && !yield(all[i]) {
				return
			}
		}
	}
}
