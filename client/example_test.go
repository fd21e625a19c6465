package client_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

type table map[client.ServiceName][]string

func (t table) Apply(_ context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	if c.First {
		clear(t) // what an earlier run has left
	}
	failed := make(map[client.ServiceName]error)
	for _, s := range c.Changed {
		if err := client.Check(s); err != nil {
			failed[client.NameOf(s)] = err // it keeps what it has
			continue
		}
		t[client.NameOf(s)] = rules(s)
	}
	for _, name := range c.Removed {
		delete(t, name)
	}
	return failed, nil
}

// rules describes where connections from pods and from this node go.
func rules(s *localnetv1.ServiceEndpoints) []string {
	var rules []string
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			traffic := p.External
			if f.Kind == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP {
				traffic = p.Internal
			}
			var to []string
			for e := range client.Endpoints(p, traffic.Inside.Endpoints) {
				to = append(to, client.AddrPort(e).String())
			}
			rules = append(rules, fmt.Sprint(p.Protocol, " ", client.AddrPort(f), ": ", traffic.Inside.Verdict, to))
		}
	}
	return rules
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := client.RunSink(ctx, client.Options{Name: "table"}, make(table)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

var _ = main // it is shown, not called

// A dataplane is tested with changes of one's own; there is no need for a server.
func ExampleSink() {
	route := &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_FORWARD, Endpoints: []uint32{0}}
	web := &localnetv1.ServiceEndpoints{
		Namespace: "shop", Name: "web",
		Ports: []*localnetv1.Port{{
			Protocol:  localnetv1.Protocol_PROTOCOL_TCP,
			Family:    localnetv1.Family_FAMILY_IPV4,
			Frontends: []*localnetv1.Frontend{{Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 96, 0, 1}, Port: 80}},
			Endpoints: []*localnetv1.Endpoint{{Address: []byte{10, 1, 0, 1}, Port: 8080}},
			Internal:  &localnetv1.Traffic{Inside: route, Outside: route, Masquerade: localnetv1.Masquerade_MASQUERADE_NEVER},
		}},
	}
	broken := &localnetv1.ServiceEndpoints{Namespace: "shop", Name: "broken", Ports: []*localnetv1.Port{{Name: "http", Protocol: 6, Family: 4}}}
	t := make(table)
	failed, _ := t.Apply(context.Background(), &client.Change{First: true, Changed: []*localnetv1.ServiceEndpoints{broken, web}})
	for name, rules := range t {
		fmt.Println(name, rules)
	}
	for _, err := range failed {
		fmt.Println(err)
	}
	// Output:
	// shop/web [PROTOCOL_TCP 10.96.0.1:80: VERDICT_FORWARD [10.1.0.1:8080]]
	// service shop/broken: port "http" PROTOCOL_TCP FAMILY_IPV4: frontends: there are none
}
