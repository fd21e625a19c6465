//go:build linux

package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// BenchmarkChurn lets an hour pass in a simulated cluster of 1,000 services, 5,000 pods and 100 nodes, with all that usually goes on in
// one, and counts what one node is sent of it: through the conversion of Kubernetes objects, the store, the brain, the API over
// TCP on loopback, to a client that is always ready, so that nothing is merged on the way.
func BenchmarkChurn(b *testing.B) {
	for b.Loop() {
		c := newChurnCluster(1)
		s, sink := newStore(brain.Config{})
		b.Cleanup(s.Close)
		for _, o := range c.objects() {
			if err := deliver(sink, o); err != nil {
				b.Fatal(err)
			}
		}
		var wire traffic
		api, err := serveStore(b.Context(), s, &wire)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(api.close)
		watch, err := watchAPI(b.Context(), client.Options{Target: api.target})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(watch.close)
		if u := <-watch.updates; u == nil || len(u.Changed) == 0 {
			b.Fatal("the first update is not the whole state")
		}
		before, known := wire.settle(), s.Snapshot().Revision()
		watched, revisions := 0, 0 // objects of kinds that a proxy watches, and states sent to the node
		c.write = func(o any) error {
			watched++
			if err := deliver(sink, o); err != nil {
				return err
			}
			if now := s.Snapshot().Revision(); now != known {
				known = now
				revisions++
				if u := <-watch.updates; u == nil {
					return errors.New("the client gets no more updates")
				}
			}
			return nil
		}
		events, revisionsOf := make(map[*noise]int), make(map[*noise]int)
		if err := c.hour(usualNoise, func(n *noise) error {
			eventsBefore, revisionsBefore := c.events, revisions
			err := n.happen(c)
			events[n] += c.events - eventsBefore
			revisionsOf[n] += revisions - revisionsBefore
			return err
		}); err != nil {
			b.Fatal(err)
		}
		for i := range usualNoise {
			n := &usualNoise[i]
			b.ReportMetric(float64(events[n]), strings.ReplaceAll(n.name, " ", "-")+"-events")
			b.ReportMetric(float64(revisionsOf[n]), strings.ReplaceAll(n.name, " ", "-")+"-revisions")
		}
		b.ReportMetric(float64(c.events), "all-events")
		b.ReportMetric(float64(watched), "events-of-kinds-that-a-proxy-watches")
		b.ReportMetric(float64(revisions), "revisions-sent-to-the-node")
		b.ReportMetric(100*float64(revisions)/float64(c.events), "revisions-per-event-%")
		b.ReportMetric(100*float64(revisions)/float64(watched), "revisions-per-watched-event-%")
		b.ReportMetric(float64(wire.settle()-before), "bytes-to-and-from-the-node-B")
	}
}

// deliver converts a Kubernetes object and hands it to a sink.
func deliver(sink model.Sink, object any) error {
	o, ok, err := kubeconv.Object(object)
	if err != nil {
		return fmt.Errorf("convert a %T: %w", object, err)
	}
	if !ok {
		return fmt.Errorf("no source delivers a %T", object)
	}
	sink.Update([]model.Object{o}, nil)
	return nil
}

// The simulated cluster of [BenchmarkChurn].
const (
	churnServices    = 1000
	churnPodsEach    = 5 // pods of each service
	churnNodes       = 100
	churnZones       = 3
	churnLocalEvery  = 20 // every so many-th service has internalTrafficPolicy: Local
	churnHintedEvery = 5  // every so many-th service has topology hints
)

// noise is one kind of thing that happens in a cluster, so often in an hour.
type noise struct {
	name   string
	hourly int
	happen func(c *churnCluster) error
}

// usualNoise is an hour of a cluster of churnNodes nodes and churnServices services. Rates that Kubernetes sets by default name
// its setting; the others are assumed, for a cluster whose operators deploy all day.
var usualNoise = []noise{
	{"lease of a node", churnNodes * 360, unwatched(1)},                     // kubelet, nodeLeaseDurationSeconds: 40
	{"lease of a leader", 3 * 1800, unwatched(1)},                           // leaderElection.retryPeriod: 2s, three components
	{"heartbeat of a node", churnNodes * 12, (*churnCluster).nodeHeartbeat}, // kubelet, nodeStatusReportFrequency: 5m
	{"status of a pod", churnServices * churnPodsEach, unwatched(1)},
	{"status of a service", 50, func(c *churnCluster) error {
		return c.writeService(func(s *corev1.Service) {
			s.Status.Conditions = []metav1.Condition{{Type: "Checked", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.now)}}
		})
	}},
	{"label or annotation of a service", 100, func(c *churnCluster) error {
		return c.writeService(func(s *corev1.Service) { c.note(&s.ObjectMeta) })
	}},
	{"label or annotation of a slice", 400, func(c *churnCluster) error {
		return c.writeSlice(c.rng.IntN(churnServices), func(s *discoveryv1.EndpointSlice) { c.note(&s.ObjectMeta) })
	}},
	{"flap of an endpoint that the node does not use", 200, func(c *churnCluster) error { return c.flapWhere(false) }},
	{"flap of an endpoint that the node uses", 20, func(c *churnCluster) error { return c.flapWhere(true) }},
	{"rollout of a deployment of 5 pods", 10, (*churnCluster).rollout},
}

// unwatched is changes of objects that no proxy watches.
func unwatched(n int) func(*churnCluster) error {
	return func(c *churnCluster) error { c.events += n; return nil }
}

// churnCluster is a cluster of Kubernetes objects, as its API server has them.
type churnCluster struct {
	rng      *rand.Rand
	version  int
	now      time.Time
	node     *corev1.Node // the node that is looked at
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice // of services, by index
	pods     int                          // that there have ever been

	// events counts all changes of objects, including objects that no proxy watches; write takes the changes of
	// watched kinds.
	events int
	write  func(object any) error
}

func churnZone(i int) string { return "zone-" + string(rune('a'+i%churnZones)) }

func newChurnCluster(seed uint64) *churnCluster {
	c := &churnCluster{
		rng: rand.New(rand.NewPCG(seed, seed)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		write: func(any) error { return nil },
	}
	c.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{corev1.LabelTopologyZone: churnZone(0)}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.128.0.0/24"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	for i := range churnServices {
		name, namespace := fmt.Sprintf("service-%04d", i), fmt.Sprintf("namespace-%02d", i%20)
		ip := nth(ranges4.services, i+1).String()
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}
		if c.isLocal(i) {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-x", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		}
		for range churnPodsEach {
			slice.Endpoints = append(slice.Endpoints, c.newEndpoint(i, len(slice.Endpoints)))
		}
		c.services, c.slices = append(c.services, svc), append(c.slices, slice)
	}
	return c
}

func (c *churnCluster) isLocal(service int) bool { return service%churnLocalEvery == 0 }
func (c *churnCluster) isHinted(service int) bool {
	return !c.isLocal(service) && service%churnHintedEvery == 1
}

func conditions(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

// newEndpoint returns a pod that has just become ready: the n-th of a service, each in another zone than the one before.
func (c *churnCluster) newEndpoint(service, n int) discoveryv1.Endpoint {
	c.pods++
	node := c.rng.IntN(churnNodes/churnZones)*churnZones + n%churnZones
	ep := discoveryv1.Endpoint{
		Addresses:  []string{nth(ranges4.pods, c.pods).String()},
		NodeName:   new(fmt.Sprintf("node-%02d", node)),
		Zone:       new(churnZone(node)),
		Conditions: conditions(true, true, false),
	}
	if c.isHinted(service) {
		ep.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: *ep.Zone}}}
	}
	return ep
}

// objects are all objects that a proxy on the node watches.
func (c *churnCluster) objects() []any {
	all := []any{c.node}
	for i := range c.services {
		all = append(all, c.services[i], c.slices[i])
	}
	return all
}

// stamp makes an object a new version of itself.
func (c *churnCluster) stamp(m *metav1.ObjectMeta) {
	c.events++
	c.version++
	m.ResourceVersion = strconv.Itoa(c.version)
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "controller", Time: new(metav1.NewTime(c.now))}}
}

// nodeHeartbeat is a write of a node's status with nothing new but the time.
func (c *churnCluster) nodeHeartbeat() error {
	if c.rng.IntN(churnNodes) != 0 { // another node, which is not watched
		c.events++
		return nil
	}
	c.node = c.node.DeepCopy()
	c.stamp(&c.node.ObjectMeta)
	c.node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(c.now)}}
	return c.write(c.node)
}

// writeService is a write of any service.
func (c *churnCluster) writeService(change func(*corev1.Service)) error {
	i := c.rng.IntN(churnServices)
	svc := c.services[i].DeepCopy()
	c.stamp(&svc.ObjectMeta)
	change(svc)
	c.services[i] = svc
	return c.write(svc)
}

// writeSlice is a write by the EndpointSlice controller.
func (c *churnCluster) writeSlice(i int, change func(*discoveryv1.EndpointSlice)) error {
	slice := c.slices[i].DeepCopy()
	c.stamp(&slice.ObjectMeta)
	change(slice)
	c.slices[i] = slice
	return c.write(slice)
}

// note changes a label and an annotation.
func (c *churnCluster) note(m *metav1.ObjectMeta) {
	metav1.SetMetaDataLabel(m, "example.com/generation", strconv.Itoa(c.version))
	metav1.SetMetaDataAnnotation(m, "example.com/checked", strconv.Itoa(c.version))
}

// flap lets a readiness probe fail and succeed again. Each is a write of the pod and one of the slice. The controller notes the time, as endpoints have
// changed.
func (c *churnCluster) flap(service, endpoint int) error {
	for _, ready := range []bool{false, true} {
		c.events++ // the pod
		if err := c.writeSlice(service, func(s *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: c.now.Format(time.RFC3339Nano)}
			s.Endpoints[endpoint].Conditions = conditions(ready, ready, false)
		}); err != nil {
			return err
		}
	}
	return nil
}

// uses reports whether connections from the node reach an endpoint, as the rules for local policies and hints have it.
func (c *churnCluster) uses(service, endpoint int) bool {
	ep := &c.slices[service].Endpoints[endpoint]
	switch {
	case c.isLocal(service):
		return *ep.NodeName == NodeName
	case c.isHinted(service):
		return *ep.Zone == churnZone(0)
	}
	return true
}

func (c *churnCluster) flapWhere(used bool) error {
	for {
		service, endpoint := c.rng.IntN(churnServices), c.rng.IntN(churnPodsEach)
		if c.uses(service, endpoint) == used {
			return c.flap(service, endpoint)
		}
	}
}

// rollout replaces the pods of a service one by one, as a Deployment with maxSurge 1 and maxUnavailable 0 does.
func (c *churnCluster) rollout() error {
	const deploymentWrites, replicaSetWrites = 3, 6 // for each pod, as a Deployment's controller makes them
	const created, deleted = 4, 3                   // writes of a pod: created, bound to a node, running, ready; deletion asked for, stopped, gone
	service := c.rng.IntN(churnServices)
	for i := range churnPodsEach {
		c.events += deploymentWrites + replicaSetWrites + created + deleted
		fresh := c.newEndpoint(service, i)
		fresh.Conditions = conditions(false, false, false)
		for _, change := range []func(s *discoveryv1.EndpointSlice){
			func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, fresh) },
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[len(s.Endpoints)-1].Conditions = conditions(true, true, false)
			},
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions = conditions(false, true, true) },
			func(s *discoveryv1.EndpointSlice) { s.Endpoints = slices.Delete(s.Endpoints, 0, 1) },
		} {
			if err := c.writeSlice(service, change); err != nil {
				return err
			}
		}
	}
	return nil
}

// hour lets everything happen that happens in an hour, in random order.
func (c *churnCluster) hour(mix []noise, happen func(n *noise) error) error {
	var order []*noise
	for i := range mix {
		for range mix[i].hourly {
			order = append(order, &mix[i])
		}
	}
	c.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, n := range order {
		c.now = c.now.Add(time.Hour / time.Duration(len(order)))
		if err := happen(n); err != nil {
			return err
		}
	}
	return nil
}
