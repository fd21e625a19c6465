// Command dns answers for the names of the cluster's Services on the node itself. No query leaves the node, and none
// is lost while the cluster's DNS servers move. It follows the node-local API and needs no access to Kubernetes.
//
// It follows Kubernetes' DNS specification (version 1.1.0), with A and AAAA, SRV, PTR and CNAME records of all
// services. This includes headless services with the hostnames of their endpoints, and services that opted out of the
// service proxy. It is no resolver, and refuses names outside of the domain and addresses that it does not know. Let
// a resolver on the node ask it for the domain and for the ranges of services and pods.
//
// The deprecated records of pods, a-b-c-d.NAMESPACE.pod.DOMAIN (section 2.6), do not exist here: the answer is
// NXDOMAIN, as in CoreDNS by default (pods disabled). The specification still asks for them, for any address, even
// without such a pod, which can be abused together with wildcard certificates. Answers for existing pods would need a
// watch on all pods.
//
// The server must serve names: switchyard serve --names, or switchyard proxy --api-listen unix:///run/switchyard/api.sock --names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/switchyard-net/switchyard/client"
)

func main() {
	o := client.Options{Name: "dns", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flag.StringVar(&o.Target, "api", client.DefaultTarget, "where the node-local API is served")
	flag.Func("socket-user", "a user who may serve it on a unix socket, by name or number, in addition to root and this process's user; may be repeated", func(u string) error {
		o.SocketUsers = append(o.SocketUsers, u)
		return nil
	})
	listen := flag.String("listen", "127.0.0.1:10053", "address and port on which queries are answered, over UDP and TCP")
	domain := flag.String("domain", "cluster.local", "the cluster's domain")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, *listen, *domain); err != nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}

// run answers until ctx ends.
func run(ctx context.Context, o client.Options, listen, domain string) error {
	z, err := newZone(domain)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	connections, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts.Go(func() { serveUDP(ctx, packets, z) })
	parts.Go(func() { serveTCP(ctx, connections, z) })
	return client.RunNames(ctx, o, func(u *client.NamesUpdate) {
		z.apply(u, func(err error) { o.Logger.Warn("ignoring invalid names", "error", err) })
	})
}
