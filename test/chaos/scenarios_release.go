//go:build linux

package chaos

import (
	"context"
	"fmt"
)

// release goes from the program of a release to this version and back.
func release(ctx context.Context, s *stage) (string, error) {
	head, err := s.builder.program(s.head)
	if err != nil {
		return "", err
	}
	n := s.scaled(20)
	for range n {
		for _, program := range []string{head, s.Release} {
			s.subject.(*switchyard).program = program
			if _, err := startTime(ctx, s, 0); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d upgrades, %d downgrades", n, n), nil
}

// mixed is the order in which processes change their version: the relay is 0, the server of the node-local API 1 and the dataplane 2. All
// combinations come up once, and all processes end with the version that they began with.
var mixed = []int{0, 1, 0, 2, 0, 1, 0, 2}

// mixedVersions changes the version of one process after the other.
func mixedVersions(ctx context.Context, s *stage) (string, error) {
	head, err := s.builder.program(s.head)
	if err != nil {
		return "", err
	}
	ours := s.subject.(*switchyard)
	servers := ours.feed.(*serversFeed)
	programs := [3]string{s.Release, s.Release, s.Release}
	upgrades, downgrades := 0, 0
	for range s.scaled(10) {
		for _, i := range mixed {
			if programs[i] == s.Release {
				programs[i] = head
				upgrades++
			} else {
				programs[i] = s.Release
				downgrades++
			}
			if i == 2 {
				ours.program = programs[i]
				if _, err := startTime(ctx, s, 0); err != nil {
					return "", err
				}
				continue
			}
			s.shuffle()
			err := inTurn(func() error { return servers.stop(i) }, s.sendState, func() error { return servers.start(i, programs[i]) }, func() error { return s.settle(ctx) })
			if err != nil {
				return "", fmt.Errorf("the relay is %s, the server %s, the dataplane %s: %w", programs[0], programs[1], programs[2], err)
			}
		}
	}
	return fmt.Sprintf("%d upgrades, %d downgrades of one process of three", upgrades, downgrades), nil
}
