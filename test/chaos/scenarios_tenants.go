//go:build linux

package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/internal/kernel/nft/nfttest"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// tenantNamespace is the namespace of the attackers.
	tenantNamespace = "tenant"
	// tenantPorts and tenantRanges are how many a Service of theirs has, which makes nearly as many entries as one may have.
	tenantPorts, tenantRanges = 190, 1000
	// forgedEvery is the time between ten datagrams from addresses that nobody has.
	forgedEvery = 5 * time.Millisecond
	// silentPort is where a pod takes datagrams and answers none.
	silentPort = 9999
)

// tenants attacks with objects and packets that any tenant can make, all at once, and starts the process again in the
// middle of it. Nobody else may notice, and changes of other tenants must arrive.
func tenants(ctx context.Context, s *stage) (string, error) {
	f := s.subject.(*switchyard).feed.(*storeFeed)
	long := max(time.Duration(float64(time.Minute)*s.Scale), 4*time.Second)
	silent, err := listenSilently(s.decoy)
	if err != nil {
		return "", err
	}
	defer silent.Close()
	if err := f.put(append(rangesSlices(), stickySlice(s.decoy, 0))); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	attacks := []*attack{
		{what: "changes of 1 in 1,000 source ranges of 190 ports", every: 100 * time.Millisecond, do: func(n int) error { return f.put([]Object{rangesService(n)}) }},
		{what: "changes of an endpoint with affinity", every: 50 * time.Millisecond, do: func(n int) error { return f.put([]Object{stickyService(), stickySlice(s.decoy, n)}) }},
		{what: "commits of another program", every: 50 * time.Millisecond, do: func(int) error { return s.lab.Node().Do(nfttest.ForeignCommit) }},
	}
	forger, err := newForger(s)
	if err != nil {
		return "", err
	}
	defer forger.close()
	attacks = append(attacks, &attack{what: "datagrams with forged sources", every: forgedEvery, each: 10, do: forger.send})
	for _, a := range attacks {
		a.begin(ctx)
	}
	var took []time.Duration
	restarts := 0
	for began := time.Now(); ctx.Err() == nil && err == nil; {
		if restarts == 0 && time.Since(began) > long/2 {
			restarts++
			err = inTurn(s.subject.Kill, s.subject.Start, func() error { return s.settle(context.WithoutCancel(ctx)) })
			continue
		}
		s.shuffle()
		sent := time.Now()
		if err = s.change(context.WithoutCancel(ctx)); err == nil {
			took = append(took, time.Since(sent)-s.rest)
			_ = pause(ctx, 200*time.Millisecond)
		}
	}
	cancel()
	var happened strings.Builder
	for _, a := range attacks {
		n, attackErr := a.end()
		fmt.Fprintf(&happened, "%d %s. ", n, a.what)
		if err = errors.Join(err, attackErr); attackErr == nil && n < a.enough(long) {
			err = errors.Join(err, fmt.Errorf("%d %s in %v: the machine is too slow for the scenario", n, a.what, long))
		}
	}
	if len(took) == 0 {
		return happened.String(), errors.Join(err, errors.New("nothing changed under the attack"))
	}
	slices.Sort(took)
	return fmt.Sprintf("%s%d restart, in %v. In addition, %d changes of the services under load, half of which arrived after %v, and all after %v",
		happened.String(), restarts, long, len(took), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond)), err
}

// attack does something again and again.
type attack struct {
	what  string
	every time.Duration
	// each is how many of it one call does, 0 for one.
	each int
	do   func(n int) error
	done chan error
	n    int
}

// begin begins an attack, which goes on until ctx ends or it fails.
func (a *attack) begin(ctx context.Context) {
	a.done = make(chan error, 1)
	go func() {
		a.done <- asOthers(func() error {
			for ctx.Err() == nil {
				if err := a.do(a.n); err != nil {
					return fmt.Errorf("%s: %w", a.what, err)
				}
				a.n++
				_ = pause(ctx, a.every)
			}
			return nil
		})
	}()
}

// end waits for the end, and returns how often it was done.
func (a *attack) end() (int, error) {
	err := <-a.done
	return a.n * max(a.each, 1), err
}

// enough is how often it must be done in so long: a tenth of what an idle machine does.
func (a *attack) enough(long time.Duration) int {
	return int(long/a.every) * max(a.each, 1) / 10
}

// tenantService is a Service of an attacker that is reachable from outside.
func tenantService(name string, number byte) *corev1.Service {
	of := serviceOf{name: name, number: number, lb: true}
	o := of.object()
	o.Namespace, o.Spec.Ports = tenantNamespace, nil
	o.Spec.ClusterIPs = o.Spec.ClusterIPs[:1]
	o.Spec.IPFamilies, o.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol}, new(corev1.IPFamilyPolicySingleStack)
	o.Status.LoadBalancer.Ingress = o.Status.LoadBalancer.Ingress[:1]
	return o
}

const (
	rangesNumber, stickyNumber = 150, 151
)

// rangesService has many ports and many source ranges. One of the ranges depends on n.
func rangesService(n int) *corev1.Service {
	o := tenantService("ranges", rangesNumber)
	for i := range tenantPorts {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: portName(i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i), TargetPort: intstr.FromInt32(servedPort)})
	}
	for i := range tenantRanges {
		o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, fmt.Sprintf("11.%d.%d.0/24", i/256, i%256))
	}
	o.Spec.LoadBalancerSourceRanges[n%tenantRanges] = fmt.Sprintf("12.%d.%d.0/24", n/256%256, n%256)
	return o
}

func portName(i int) string { return fmt.Sprintf("p%d", i) }

// rangesSlices are the endpoints of that service. A slice has a hundred ports at most.
func rangesSlices() (list []Object) {
	for first := 0; first < tenantPorts; first += 100 {
		slice := newSlice("ranges", state.IPv4, servedPort)
		slice.Namespace, slice.Name, slice.Ports = tenantNamespace, fmt.Sprintf("ranges-%d", first), nil
		for i := first; i < min(first+100, tenantPorts); i++ {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(portName(i)), Protocol: new(corev1.ProtocolTCP), Port: new(int32(servedPort))})
		}
		for e := range 3 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 246, 0, byte(1 + e)}).String()}})
		}
		list = append(list, slice)
	}
	return list
}

// stickyService remembers clients.
func stickyService() *corev1.Service {
	o := tenantService("forged", stickyNumber)
	o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	o.Spec.Ports = []corev1.ServicePort{{Name: "udp", Protocol: corev1.ProtocolUDP, Port: udpPort, TargetPort: intstr.FromInt32(silentPort)}}
	return o
}

// stickySlice has a pod that takes datagrams and answers none, and a second endpoint now and then, which nobody has.
func stickySlice(silent *pod, n int) *discoveryv1.EndpointSlice {
	slice := newSlice("forged", state.IPv4, silentPort)
	slice.Namespace, slice.Ports = tenantNamespace, slice.Ports[1:]
	addresses := []string{silent.Addrs[0].String()}
	if n%2 == 0 {
		addresses = append(addresses, "10.246.1.1")
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return slice
}

// listenSilently has a pod take datagrams that it does not read.
func listenSilently(p *pod) (conn net.PacketConn, err error) {
	err = p.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addrs[0], silentPort)))
		return err
	})
	return conn, err
}

// forger sends datagrams from outside to a service with affinity, each from another address.
type forger struct {
	fd  int
	to  netip.Addr
	rng *rand.Rand
}

func newForger(s *stage) (f *forger, err error) {
	of := serviceOf{number: stickyNumber}
	f = &forger{to: of.lbIPs()[0], rng: rand.New(rand.NewPCG(s.Seed, 1))}
	err = s.lab.Client().Do(func() (err error) {
		f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return os.NewSyscallError("socket", err)
	})
	return f, err
}

func (f *forger) close() { _ = unix.Close(f.fd) }

// send sends ten datagrams. A full queue loses some, as it does to any attacker.
func (f *forger) send(int) error {
	for range 10 {
		packet := make([]byte, 28)
		packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		copy(packet[12:], []byte{198, 18 + byte(f.rng.IntN(2)), byte(f.rng.IntN(256)), byte(f.rng.IntN(256))})
		copy(packet[16:], f.to.AsSlice())
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+f.rng.IntN(60000)))
		binary.BigEndian.PutUint16(packet[22:], udpPort)
		binary.BigEndian.PutUint16(packet[24:], 8)
		err := unix.Sendto(f.fd, packet, 0, &unix.SockaddrInet4{Addr: f.to.As4()})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return os.NewSyscallError("sendto", err)
		}
	}
	return nil
}
