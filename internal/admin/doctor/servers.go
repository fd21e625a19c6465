package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// slow is how long a server on the same network may take to answer.
const slow = time.Second

// How far two clocks may be apart.
const (
	skewWarning = 5 * time.Second
	skewFault   = 5 * time.Minute
)

// api asks the API server once for two checks.
func (n *Node) api(ctx context.Context) (API, error) {
	if n.API == nil {
		return API{}, errNotAsked
	}
	if n.asked == nil {
		answer, err := n.API(ctx)
		n.asked = &asked{answer, err}
	}
	return n.asked.answer, n.asked.err
}

type asked struct {
	answer API
	err    error
}

var errNotAsked = errors.New("not asked")

func apiServer(ctx context.Context, n *Node) []Finding {
	a, err := n.api(ctx)
	if errors.Is(err, errNotAsked) {
		return info("not asked: give --kubeconfig, or run this in the proxy's pod")
	}
	if err != nil {
		return []Finding{{
			Level: Fault, Summary: fmt.Sprintf("the API server cannot be asked: %v", err),
			Meaning: "a proxy that follows it keeps what it knew, and does not start without",
			Remedy:  "see that the address, certificates and token in the kubeconfig are right, and that a firewall lets this node through; 'kubectl --kubeconfig FILE version' asks the same",
		}}
	}
	found := fine("%s answers, version %s, within %v", a.Server, a.Version, a.Took.Round(time.Millisecond))
	if a.Took > slow {
		found = []Finding{{
			Level: Warning, Summary: fmt.Sprintf("%s, version %s, took %v to answer", a.Server, a.Version, a.Took.Round(time.Millisecond)),
			Meaning: "changes of Services reach this node late", Remedy: "look at the load of the API server, and at the way there",
		}}
	}
	for _, refused := range a.Refused {
		found = append(found, Finding{
			Level: Fault, Summary: refused.Error(), Meaning: "the proxy does not know what it cannot list: it does not start without",
			Remedy: "bind the proxy's account to ClusterRole system:node-proxier, or give it the role in the message",
		})
	}
	if a.NodeMissing {
		found = append(found, Finding{
			Level: Warning, Summary: fmt.Sprintf("the API server has no Node %q", a.Node),
			Meaning: "no endpoint counts as local, and health checks fail",
			Remedy:  "give the Node's name by --node; for the proxy, by --hostname-override",
		})
	}
	return found
}

func clock(ctx context.Context, n *Node) []Finding {
	a, err := n.api(ctx)
	if err != nil {
		return info("not compared: there was no answer of an API server")
	}
	apart := a.Ahead.Abs()
	if apart <= skewWarning {
		return fine("this clock and the API server's agree within %v", skewWarning)
	}
	level := Warning
	if apart > skewFault {
		level = Fault
	}
	than := "behind"
	if a.Ahead < 0 {
		than = "ahead of"
	}
	return []Finding{{
		Level: level, Summary: fmt.Sprintf("this clock is %v %s the API server's", apart, than),
		Meaning: "certificates and tokens are taken for not yet valid or expired, and network_programming_duration_seconds is wrong by as much",
		Remedy:  "let chrony or systemd-timesyncd set the clock of both",
	}}
}

func relay(ctx context.Context, n *Node) []Finding {
	if n.Relay == nil {
		return info("not asked: --api names one")
	}
	r, err := n.Relay(ctx)
	if err != nil {
		return []Finding{{
			Level: Fault, Summary: fmt.Sprintf("the API that a dataplane would follow does not answer: %v", err),
			Meaning: "the kernel keeps routing by the last state; with --fallback the node follows the API server instead",
			Remedy:  "see that 'switchyard serve' or the relay runs, that a firewall lets this node through, and that --api and --tls-* are as for 'switchyard apply'",
		}}
	}
	return fine("%s answers within %v, with %s", r.Target, r.Took.Round(time.Millisecond), count(r.Services, "Service"))
}
