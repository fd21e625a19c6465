package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	"github.com/switchyard-net/switchyard/internal/admin/doctor"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
)

// doctorOptions are the flags of 'switchyard doctor'.
type doctorOptions struct {
	files      fileNames
	socket     adminSocket
	mode       string
	kubeconfig string
	master     string
	api        string
	tls        client.TLSFiles
	users      []string
	node       string
	nodePorts  string
	health     cli.AddressAndPort
	timeout    time.Duration
	output     string
	problems   bool
	probe      bool
}

func newDoctorCommand() *cobra.Command {
	o := doctorOptions{health: cli.AddressAndPort{AddrPort: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), config.HealthzPort)}}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps a service proxy on this node from working",
		Long: `Doctor looks at this node: the kernel's support for each dataplane, other proxies and their leftovers,
sysctls, firewalls, connection tracking, ports and permissions. It also looks at the API server, a
relay, the clock, and the status of a running proxy. Each finding says what it means and what to do.

It changes nothing, and works with and without a running proxy. Run it as root, in the network
namespace of the node: on the node itself, or by kubectl exec in the proxy's pod. With --probe, it also
connects to endpoints.

The exit code is 0 if there are no faults, also with warnings. It is 1 if there are faults, and 2 for
mistakes in the command line.`,
		Example: `  switchyard doctor
  switchyard doctor --problems --probe
  switchyard doctor --mode ipvs --kubeconfig /etc/kubernetes/kubelet.conf
  switchyard doctor --config /etc/switchyard/config.yaml -o json
  kubectl exec -n kube-system ds/switchyard -- /switchyard doctor`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.Var(&o.files, "config", "configuration file of the node's proxy, or - for standard input: the mode, the API server and the address of /healthz are taken from it")
	f.StringVar(&o.mode, "mode", "", "dataplane that the proxy is to use (default: the mode of the configuration, or of the running process, or nftables)")
	o.socket.register(f)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", kubeconfigUsage)
	f.StringVar(&o.master, "master", "", "address of the API server, in place of the kubeconfig's")
	f.StringVar(&o.api, "api", "", "relay or other server that a dataplane on this node would follow, as for 'switchyard apply'")
	f.StringVar(&o.tls.CA, "tls-ca", "", "authorities that vouch for that server, in PEM")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "certificate to show it")
	f.StringVar(&o.tls.Key, "tls-key", "", "key of that certificate")
	f.StringVar(&o.tls.ServerName, "tls-server-name", "", "name that its certificate must have (default: the host in --api)")
	f.StringSliceVar(&o.users, "socket-users", nil, "users whose processes may serve a unix socket in --api, in addition to root and this process's user")
	f.StringVar(&o.node, "node", "", "name of this Node (default: the name in the configuration, or of the running process, or of the host)")
	f.StringVar(&o.nodePorts, "node-port-range", "30000-32767", "the API server's --service-node-port-range")
	f.Var(&o.health, "healthz-address", "IP and port at which a running proxy answers /healthz")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long each server may take to answer")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	f.BoolVar(&o.problems, "problems", false, "show warnings and faults only")
	f.BoolVar(&o.probe, "probe", false, "open a TCP connection to some endpoints of each Service, and close it at once; a running process names them")
	cli.Complete(cmd, "output", "text", "json")
	cli.Complete(cmd, "mode", node.Modes(runtime.GOOS)...)
	return cmd
}

func (o *doctorOptions) run(cmd *cobra.Command) error {
	first, last, err := o.check()
	if err != nil {
		return cli.Usage(cmd.CommandPath(), err)
	}
	c, err := o.config(cmd)
	if err != nil {
		return err
	}
	name, err := nodeOrHost(c.HostnameOverride)
	if err != nil {
		return err
	}
	n := &doctor.Node{
		Files: os.DirFS("/"), Mode: string(c.Mode), NodePorts: [2]int{first, last},
		Dataplanes:    kernelDataplanes(c),
		Programmed:    func() (bool, error) { return node.Programmed(c, runtime.GOOS) },
		Holder:        nodelock.Holder,
		Route:         routeTo,
		Leftovers:     leftovers.Find,
		BaseChains:    baseChains,
		HealthAddress: o.health.String(),
		Health:        func(ctx context.Context) (doctor.Health, error) { return askHealth(ctx, o.health.AddrPort, o.timeout) },
	}
	if c.Edge.Enabled() {
		n.EdgeMode = string(c.Edge.Mode)
	}
	if runtime.GOOS == "linux" {
		n.EdgeAvailable = func() error {
			return edge.Available(edge.Settings{Mark: 1 << c.Edge.MarkBit, TableSize: int(c.Edge.TableSize), XDP: c.Edge.Mode == config.EdgeXDP})
		}
	}
	connection, ok, err := operatorConnection(c, o.master)
	if ok || err != nil {
		n.API = func(ctx context.Context) (doctor.API, error) {
			if err != nil {
				return doctor.API{}, err
			}
			return o.askAPI(ctx, connection, name)
		}
	}
	if o.api != "" {
		n.Relay = func(ctx context.Context) (doctor.Relay, error) { return o.askRelay(ctx, c.HostnameOverride) }
	}
	if o.socket.exists() {
		n.Services = o.clusterIPs
	}
	if o.probe {
		n.Endpoints, n.Connect = o.endpoints, o.connect
	}
	r := doctor.Examine(cmd.Context(), n)
	if err := o.print(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	if r.Faults > 0 {
		return cli.ExitCode(cli.ExitError)
	}
	return nil
}

// check finds flags that cannot be used, and returns the range of NodePorts.
func (o *doctorOptions) check() (first, last int, err error) {
	if o.output != "text" && o.output != "json" {
		return 0, 0, cli.NoneOf("output", o.output, "text", "json")
	}
	if err := o.socket.check(); err != nil {
		return 0, 0, err
	}
	if o.timeout <= 0 {
		return 0, 0, errors.New("--timeout must be more than 0")
	}
	if o.api == "" && (o.tls != client.TLSFiles{} || len(o.users) > 0) {
		return 0, 0, errors.New("--tls-* and --socket-users are for --api; give both, or leave them out")
	}
	if n, _ := fmt.Sscanf(o.nodePorts, "%d-%d", &first, &last); n != 2 || first < 1 || last < first || last > 65535 {
		return 0, 0, fmt.Errorf("--node-port-range: %q is not a range of ports such as 30000-32767", o.nodePorts)
	}
	return first, last, nil
}

// config is the configuration of the node's proxy, by the files and the flags.
func (o *doctorOptions) config(cmd *cobra.Command) (*config.Config, error) {
	c, err := configOf(cmd, o.files)
	if err != nil {
		return nil, err
	}
	if len(o.files) > 0 && !cmd.Flags().Changed("healthz-address") && c.HealthzBindAddress.IsValid() {
		o.health.AddrPort = onThisHost(c.HealthzBindAddress)
	}
	if len(o.files) == 0 {
		o.askProcess(cmd.Context(), c)
	}
	if o.mode != "" {
		c.Mode = config.Mode(o.mode)
	}
	mode, err := node.SelectMode(c, runtime.GOOS)
	if err != nil {
		return nil, cli.Usage(cmd.CommandPath(), err)
	}
	c.Mode = mode
	if o.node != "" {
		c.HostnameOverride = o.node
	}
	if o.kubeconfig != "" {
		c.ClientConnection.Kubeconfig = o.kubeconfig
	}
	return c, nil
}

// askProcess gives c the mode and the Node of a running process, if one answers. A missing answer is no fault here,
// because checks find its cause.
func (o *doctorOptions) askProcess(ctx context.Context, c *config.Config) {
	if !o.socket.exists() {
		return
	}
	client, err := o.socket.dial()
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	m, err := client.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return
	}
	s := adminconv.ToStatus(m.GetStatus())
	c.HostnameOverride = s.Node
	if s.Mode != "none" {
		c.Mode = config.Mode(s.Mode)
	}
}

// onThisHost is where an address to listen at is reached from the same host. Only over loopback a proxy names its problems.
func onThisHost(listen netip.AddrPort) netip.AddrPort {
	switch {
	case !listen.Addr().IsUnspecified():
		return listen
	case listen.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), listen.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), listen.Port())
}

func (o *doctorOptions) print(w io.Writer, r *doctor.Report) error {
	if o.output == "json" {
		return writeJSON(w, r)
	}
	return doctor.Style{Colour: hasColour(w), Problems: o.problems}.Write(w, r)
}

// kernelDataplanes are the dataplanes of this program, each with its requirements on the kernel.
func kernelDataplanes(c *config.Config) []doctor.Dataplane {
	return []doctor.Dataplane{
		{Mode: string(config.ModeNFTables), Available: nftablesAvailable},
		{Mode: string(config.ModeIPTables), Available: iptables.Available},
		{Mode: string(config.ModeIPVS), Available: ipvs.Available},
		{Mode: string(config.ModeEBPF), Available: func() error {
			return ebpf.Available(ebpf.Options{CgroupPath: c.EBPF.CgroupPath, NodeOnly: !c.EBPF.Pods})
		}},
		{Mode: string(config.ModeUserspace), Available: nftablesAvailable}, // it is above nftables, and needs sockets only
	}
}

// nftablesAvailable asks nf_tables for what only newer kernels have. Whether they have it or not, the dataplane can do without.
func nftablesAvailable() (err error) {
	conn, err := nft.Dial()
	if err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	_, err = conn.Generation()
	if err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	return nil
}

func baseChains() (chains []nft.BaseChain, err error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.BaseChains()
}

// maxHealth is how many bytes of a proxy's answer are read.
const maxHealth = 4 << 20

// askHealth asks a running proxy how it is doing.
func askHealth(ctx context.Context, address netip.AddrPort, timeout time.Duration) (doctor.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+"/healthz", nil)
	if err != nil {
		return doctor.Health{}, err
	}
	direct := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}}
	response, err := direct.Do(request)
	if err != nil {
		return doctor.Health{}, err
	}
	defer response.Body.Close()
	var answer struct {
		Healthy  bool `json:"healthy"`
		Problems []struct {
			Part    string `json:"part"`
			Message string `json:"message"`
		} `json:"problems"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxHealth)).Decode(&answer); err != nil {
		return doctor.Health{}, fmt.Errorf("what answers there is no service proxy: %w", err)
	}
	h := doctor.Health{Healthy: answer.Healthy && response.StatusCode == http.StatusOK}
	for _, p := range answer.Problems {
		if p.Part != "conntrack" { // doctor reads the table itself
			h.Problems = append(h.Problems, doctor.Problem{Part: p.Part, Message: p.Message})
		}
	}
	return h, nil
}

// maxExamined is how many rows of a process are read for one check.
const maxExamined = 5000

// rows reads rows of a running process.
func (o *doctorOptions) rows(ctx context.Context, kind adminv1.Kind, take func(row any)) error {
	client, err := o.socket.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	_, err = client.list(ctx, &adminv1.Selection{Kind: kind}, maxExamined, func(m *adminv1.Row) error {
		row, err := rowOf(m)
		take(row)
		return err
	})
	return err
}

// clusterIPs are the cluster IPs that a running process serves.
func (o *doctorOptions) clusterIPs(ctx context.Context) (addrs []netip.Addr, err error) {
	err = o.rows(ctx, adminv1.Kind_KIND_SERVICE, func(row any) {
		if s, ok := row.(*view.Service); ok && s.NotRouted == "" {
			addrs = append(addrs, s.ClusterIPs...)
		}
	})
	return addrs, err
}

// endpoints are the endpoints to which a running process sends TCP connections of this node.
func (o *doctorOptions) endpoints(ctx context.Context) (found []doctor.Endpoint, err error) {
	err = o.rows(ctx, adminv1.Kind_KIND_ENDPOINT, func(row any) {
		if e, ok := row.(*view.Endpoint); ok && e.Inside && e.Protocol == "TCP" {
			found = append(found, doctor.Endpoint{Service: e.Namespace + "/" + e.Service, Addr: e.Addr})
		}
	})
	return found, err
}

// connectTime is how long an endpoint may take to accept a connection.
const connectTime = 2 * time.Second

// connect opens a TCP connection and closes it. Without an answer in time, the error is [context.DeadlineExceeded].
func (o *doctorOptions) connect(ctx context.Context, to netip.AddrPort) error {
	limited, cancel := context.WithTimeout(ctx, min(connectTime, o.timeout))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(limited, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// routeTo returns an error if this node has no route to an address. Connecting a UDP socket looks for a route, and sends nothing.
func routeTo(to netip.Addr) error {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		if wrong, ok := errors.AsType[syscall.Errno](err); ok {
			return wrong
		}
		return err
	}
	return conn.Close()
}

func (o *doctorOptions) askAPI(ctx context.Context, connection kube.Connection, name string) (doctor.API, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	api, err := connection.Config()
	if err != nil {
		return doctor.API{}, err
	}
	a, err := kube.Ask(ctx, api, name)
	if err != nil {
		return doctor.API{}, err
	}
	return doctor.API{
		Server: api.Host, Version: a.Version, Took: a.Took, Ahead: a.Ahead, Refused: a.Refused,
		Node: name, NodeMissing: a.NodeKnown && !a.NodeExists,
	}, nil
}

// askRelay follows a server until its first whole state.
func (o *doctorOptions) askRelay(ctx context.Context, name string) (doctor.Relay, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	failed := make(chan error, 1)
	options := client.Options{Target: o.api, Node: name, Name: "doctor", SocketUsers: o.users, OnError: func(err error) {
		select {
		case failed <- err:
		default: // the first one is the cause
		}
		cancel()
	}}
	if o.tls != (client.TLSFiles{}) {
		var err error
		if options.Certificates, err = client.NewCertificates(o.tls, nil); err != nil {
			return doctor.Relay{}, err
		}
	}
	watcher, err := client.NewWatcher(options)
	if err != nil {
		return doctor.Relay{}, err
	}
	began := time.Now()
	for update := range watcher.Updates(ctx) {
		return doctor.Relay{Target: o.api, Took: time.Since(began), Services: len(update.Changed)}, nil
	}
	select {
	case err := <-failed:
		return doctor.Relay{}, err
	default:
		return doctor.Relay{}, fmt.Errorf("%s: no state within %v: %w", o.api, o.timeout, context.Cause(ctx))
	}
}
