//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// ping: ping FROM TO[,TO] answered|refused|unanswered [from=ADDRESS]
//
// A dataplane without the feature is not asked.
func (s *story) ping(_ *testscript.TestScript, args []string) error {
	if len(args) < 3 || s.hosts[args[0]] == nil {
		return fmt.Errorf("no host in %q; usage: ping FROM TO answered|refused|unanswered [from=ADDRESS]", args)
	}
	host, options := s.hosts[args[0]], topology.ProbeOptions{Timeout: answerTimeout}
	want, ok := map[string]topology.Outcome{"answered": topology.Answered, "refused": topology.Refused, "unanswered": topology.TimedOut}[args[2]]
	if !ok {
		return fmt.Errorf("%q: use answered, refused or unanswered", args[2])
	}
	if want == topology.TimedOut {
		options.Timeout = silence
	}
	for _, arg := range args[3:] {
		text, ok := strings.CutPrefix(arg, "from=")
		if !ok {
			return fmt.Errorf("unknown word %q", arg)
		}
		var err error
		if options.Source, err = netip.ParseAddr(text); err != nil {
			return err
		}
	}
	var checks []func() error
	for item := range strings.SplitSeq(args[1], ",") {
		dsts, err := s.pinged(item)
		if err != nil {
			return err
		}
		for _, dst := range dsts {
			if options.Source.IsValid() && options.Source.Is4() != dst.Is4() {
				continue
			}
			checks = append(checks, func() error {
				if got := host.Ping(s.ctx, dst, options); got.Outcome != want {
					return fmt.Errorf("%s to %v: %v (%w), want it %v", host.Name, dst, got.Outcome, got.Err, want)
				}
				return nil
			})
		}
	}
	if len(checks) == 0 {
		return errors.New("nothing is pinged")
	}
	if !s.cluster.programs(state.Ping) {
		return nil
	}
	return run(checks, true)
}

// pinged returns the addresses that a word stands for.
func (s *story) pinged(text string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return []netip.Addr{addr}, nil
	}
	name, kind, _ := strings.Cut(text, "@")
	addrs, err := s.addresses(name, kind)
	if err != nil {
		return nil, fmt.Errorf("destination %q: %w", text, err)
	}
	return addrs, nil
}
