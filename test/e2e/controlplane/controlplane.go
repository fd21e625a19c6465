//go:build linux

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/test/netns"
)

const (
	// address is where the API server listens, in its own namespace and wherever it is exposed.
	address = "127.0.0.1:6443"
	// token is the administrator's password. The API server cannot be reached from outside.
	token = "administrator"
	// readyTimeout is for a start on a machine that is busy with much else.
	readyTimeout = 2 * time.Minute
)

// Options report how the control plane is set up.
type Options struct {
	// Dir is where data, keys and logs go. Required.
	Dir string
	// ServiceCIDRs is the range of the ServiceCIDR named kubernetes, which holds the address of the service
	// default/kubernetes. Default: 10.99.0.0/24,fd00:10:99::/112.
	ServiceCIDRs string
	// Controllers are run by kube-controller-manager, for example endpointslice-controller. Default: it does not run.
	Controllers []string
	// Pods makes a cluster that can run pods: kube-scheduler runs, service accounts have tokens, and RBAC decides about them. By default,
	// everybody may do everything.
	Pods bool
	// APIServerFlags are added to the flags of the API server.
	APIServerFlags []string
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	ns        *netns.NS
	dir       string
	processes []*Process
	ca        []byte
}

// Start starts a control plane and waits until it answers. ctx is only for the start. The caller must call Stop.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	c := &ControlPlane{dir: o.Dir}
	if err := c.start(ctx, o); err != nil {
		c.Stop()
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	return c, nil
}

// PIDs returns the process ids of what the control plane consists of.
func (c *ControlPlane) PIDs() (pids []int) {
	for _, p := range c.processes {
		pids = append(pids, p.PID())
	}
	return pids
}

func (c *ControlPlane) start(ctx context.Context, o Options) error {
	program, err := Binary()
	if err != nil {
		return err
	}
	if c.ns, err = netns.New(); err != nil {
		return err
	}
	if err := c.ns.Do(startLoopback); err != nil {
		return err
	}
	if c.ca, err = writeKeys(c.dir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	if err := c.writeKubeconfig(); err != nil {
		return err
	}
	if err := c.run(program, "etcd", etcdFlags(c.dir)); err != nil {
		return err
	}
	if err := c.run(program, "kube-apiserver", apiServerFlags(c.dir, o)); err != nil {
		return err
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	if o.Pods {
		if err := c.run(program, "kube-scheduler", []string{"--kubeconfig=" + c.Kubeconfig(), "--leader-elect=false", "--secure-port=0"}); err != nil {
			return err
		}
	}
	if len(o.Controllers) == 0 {
		return nil
	}
	return c.run(program, "kube-controller-manager", []string{
		"--kubeconfig=" + c.Kubeconfig(),
		"--controllers=" + strings.Join(o.Controllers, ","),
		"--root-ca-file=" + filepath.Join(c.dir, "server.crt"),
		"--leader-elect=false", "--secure-port=0",
	})
}

func (c *ControlPlane) run(program, name string, flags []string) error {
	p, err := Run(c.ns, c.dir, name, program, append([]string{name}, flags...)...)
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

func etcdFlags(dir string) []string {
	return []string{
		"--data-dir=" + filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380",
	}
}

// apiServerFlags turn off what takes time and that no service proxy has to do with.
func apiServerFlags(dir string, o Options) []string {
	cidrs := o.ServiceCIDRs
	if cidrs == "" {
		cidrs = "10.99.0.0/24,fd00:10:99::/112"
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	authorization, withoutPlugin := "AlwaysAllow", ",ServiceAccount"
	if o.Pods {
		authorization, withoutPlugin = "Node,RBAC", ""
	}
	return append([]string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--secure-port=6443", "--advertise-address=" + Address,
		"--tls-cert-file=" + in("server.crt"), "--tls-private-key-file=" + in("server.key"),
		"--token-auth-file=" + in("tokens.csv"), "--authorization-mode=" + authorization, "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + in("server.key"), "--service-account-signing-key-file=" + in("server.key"),
		"--service-cluster-ip-range=" + cidrs,
		// Nobody but the test reports what the endpoints of default/kubernetes are.
		"--endpoint-reconciler-type=none",
		// Objects of a namespace may come before the namespace.
		"--disable-admission-plugins=NamespaceLifecycle,DefaultStorageClass,StorageObjectInUseProtection" + withoutPlugin,
		"--enable-priority-and-fairness=false", "--profiling=false",
	}, o.APIServerFlags...)
}

// Address is an address of the namespace that is not a loopback address: the API server and kubelet want one.
const Address = "198.18.0.1"

func startLoopback() error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(Address + "/32")
	if err != nil {
		return err
	}
	return errors.Join(nl.LinkSetUp(lo), nl.AddrAdd(lo, addr))
}

// ready waits until the API server reports that it is.
func (c *ControlPlane) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	for {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		for _, p := range c.processes {
			if failure := p.Failure(); failure != nil {
				return failure
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Config returns how to connect as administrator from any namespace of this process, without a rate limit.
func (c *ControlPlane) Config() *rest.Config {
	return &rest.Config{
		Host:            "https://" + address,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		Dial:            c.dial,
		QPS:             -1,
	}
}

// dial connects inside the namespace of the control plane.
func (c *ControlPlane) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.ns.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Do runs fn on a thread inside the namespace of the control plane, as [netns.NS.Do] does.
func (c *ControlPlane) Do(fn func() error) error { return c.ns.Do(fn) }

// Kubeconfig is the path of a file with which programs connect as administrator. They can run in the control plane's own namespace, and in
// the namespaces to which it is exposed.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

func (c *ControlPlane) writeKubeconfig() error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: e2e
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
contexts:
- name: e2e
  context: {cluster: e2e, user: admin}
current-context: e2e
`, address, filepath.Join(c.dir, "server.crt"), token)
	return os.WriteFile(c.Kubeconfig(), []byte(text), 0o600)
}

// Expose listens on the API server's address inside another namespace and passes connections on, until the result is closed. Programs in
// that namespace connect by [ControlPlane.Kubeconfig].
func (c *ControlPlane) Expose(ns namespace) (io.Closer, error) {
	var listener net.Listener
	err := ns.Do(func() (err error) { listener, err = net.Listen("tcp", address); return err })
	if err != nil {
		return nil, fmt.Errorf("expose the API server: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.forward(conn)
		}
	}()
	return listener, nil
}

// forward passes bytes both ways until one side ends.
func (c *ControlPlane) forward(from net.Conn) {
	defer from.Close()
	to, err := c.dial(context.Background(), "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	pass := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		done <- struct{}{}
	}
	go pass(to, from)
	go pass(from, to)
	<-done
}

// Process returns a running program of the control plane by its name, or nil.
func (c *ControlPlane) Process(name string) *Process {
	for _, p := range c.processes {
		if p.Cmd.Args[1] == name {
			return p
		}
	}
	return nil
}

// Stop ends everything.
func (c *ControlPlane) Stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].Kill()
	}
	if c.ns != nil {
		c.ns.Close()
	}
}
