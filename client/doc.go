// Package client follows the routing state of one node, as a Switchyard server publishes it. It is all that a dataplane
// needs: the server has applied the rules of Kubernetes, and this package uses no Kubernetes objects.
//
// A dataplane is a [Sink]. This example is complete, except for the kernel:
//
//	type table map[client.ServiceName][]string
//
//	func (t table) Apply(_ context.Context, c *client.Change) (map[client.ServiceName]error, error) {
//		if c.First {
//			clear(t) // what an earlier run has left
//		}
//		failed := make(map[client.ServiceName]error)
//		for _, s := range c.Changed {
//			if err := client.Check(s); err != nil {
//				failed[client.NameOf(s)] = err // it keeps what it has
//				continue
//			}
//			t[client.NameOf(s)] = rules(s)
//		}
//		for _, name := range c.Removed {
//			delete(t, name)
//		}
//		return failed, nil
//	}
//
//	// rules describes where connections from pods and from this node go.
//	func rules(s *localnetv1.ServiceEndpoints) []string {
//		var rules []string
//		for _, p := range s.Ports {
//			for _, f := range p.Frontends {
//				traffic := p.External
//				if f.Kind == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP {
//					traffic = p.Internal
//				}
//				var to []string
//				for e := range client.Endpoints(p, traffic.Inside.Endpoints) {
//					to = append(to, client.AddrPort(e).String())
//				}
//				rules = append(rules, fmt.Sprint(p.Protocol, " ", client.AddrPort(f), ": ", traffic.Inside.Verdict, to))
//			}
//		}
//		return rules
//	}
//
//	func main() {
//		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//		defer stop()
//		if err := client.RunSink(ctx, client.Options{Name: "table"}, make(table)); err != nil {
//			fmt.Fprintln(os.Stderr, err)
//			os.Exit(2)
//		}
//	}
//
// [RunSink] does the rest. It reconnects, computes the changes after a restart of the server, retries failures, and
// reports the dataplane's status to the server. Programs that need less use a [Watcher], which returns single updates,
// or an [EndpointsClient], which gets the whole state each time. The simplest program is one call of [Run].
package client
