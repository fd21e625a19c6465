package bench

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The simulated cluster of [Churn].
const (
	churnServices    = 1000
	churnPodsEach    = 5 // pods of each service
	churnNodes       = 100
	churnZones       = 3
	churnLocalEvery  = 20 // every so many-th service has internalTrafficPolicy: Local
	churnHintedEvery = 5  // every so many-th service has topology hints
)

// noise is one kind of thing that happens in a cluster, again and again.
type noise struct {
	name string
	// hourly is how often it happens in an hour.
	hourly int
	// happen makes it happen.
	happen func(c *churnCluster)
}

// usualNoise is an hour of a cluster of churnNodes nodes and churnServices services. Rates that Kubernetes sets by default name
// its setting; the others are assumed, for a cluster whose operators deploy all day.
var usualNoise = []noise{
	{"lease of a node", churnNodes * 360, (*churnCluster).unwatched},        // kubelet, nodeLeaseDurationSeconds: 40
	{"lease of a leader", 3 * 1800, (*churnCluster).unwatched},              // leaderElection.retryPeriod: 2s, three components
	{"heartbeat of a node", churnNodes * 12, (*churnCluster).nodeHeartbeat}, // kubelet, nodeStatusReportFrequency: 5m
	{"status of a pod", churnServices * churnPodsEach, (*churnCluster).unwatched},
	{"status of a service", 50, (*churnCluster).serviceStatus},
	{"label or annotation of a service", 100, (*churnCluster).serviceMetadata},
	{"label or annotation of a slice", 400, (*churnCluster).sliceMetadata},
	{"flap of an endpoint that the node does not use", 200, (*churnCluster).flapElsewhere},
	{"flap of an endpoint that the node uses", 20, (*churnCluster).flapHere},
	{"rollout of a deployment of 5 pods", 10, (*churnCluster).rollout},
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
	write  func(object any)
}

func churnNode(i int) string { return fmt.Sprintf("node-%02d", i) }
func churnZone(i int) string { return "zone-" + string(rune('a'+i%churnZones)) }

func newChurnCluster(seed uint64) *churnCluster {
	c := &churnCluster{
		rng: rand.New(rand.NewPCG(seed, seed)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		write: func(any) {},
	}
	c.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{corev1.LabelTopologyZone: churnZone(0)}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.128.0.0/24"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	for i := range churnServices {
		name, namespace := fmt.Sprintf("service-%04d", i), fmt.Sprintf("namespace-%02d", i%clusterNamespaces)
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
		svc.Spec.Type = corev1.ServiceTypeClusterIP
		svc.Spec.ClusterIP = nth(ranges4.services, i+1).String()
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		svc.Spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}}
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

// newEndpoint returns a pod that has just become ready: the n-th of a service, each in another zone than the one before.
func (c *churnCluster) newEndpoint(service, n int) discoveryv1.Endpoint {
	c.pods++
	node := c.rng.IntN(churnNodes/churnZones)*churnZones + n%churnZones
	ep := discoveryv1.Endpoint{
		Addresses:  []string{nth(ranges4.pods, c.pods).String()},
		NodeName:   new(churnNode(node)),
		Zone:       new(churnZone(node)),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
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

// unwatched is a change of an object that no proxy watches.
func (c *churnCluster) unwatched() { c.events++ }

// stamp makes an object a new version of itself.
func (c *churnCluster) stamp(m *metav1.ObjectMeta) {
	c.version++
	m.ResourceVersion = strconv.Itoa(c.version)
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "controller", Time: new(metav1.NewTime(c.now))}}
}

// nodeHeartbeat is a write of a node's status with nothing new but the time.
func (c *churnCluster) nodeHeartbeat() {
	c.events++
	if c.rng.IntN(churnNodes) != 0 {
		return // another node, which is not watched
	}
	c.node = c.node.DeepCopy()
	c.stamp(&c.node.ObjectMeta)
	c.node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(c.now)}}
	c.write(c.node)
}

func (c *churnCluster) writeService(i int, change func(*corev1.Service)) {
	c.events++
	svc := c.services[i].DeepCopy()
	c.stamp(&svc.ObjectMeta)
	change(svc)
	c.services[i] = svc
	c.write(svc)
}

// writeSlice is a write by the EndpointSlice controller. It notes the time, as the controller does, if endpoints have changed.
func (c *churnCluster) writeSlice(i int, change func(*discoveryv1.EndpointSlice)) {
	c.events++
	slice := c.slices[i].DeepCopy()
	c.stamp(&slice.ObjectMeta)
	change(slice)
	c.slices[i] = slice
	c.write(slice)
}

func (c *churnCluster) serviceStatus() {
	c.writeService(c.rng.IntN(churnServices), func(s *corev1.Service) {
		s.Status.Conditions = []metav1.Condition{{Type: "Checked", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.now)}}
	})
}

func (c *churnCluster) serviceMetadata() {
	c.writeService(c.rng.IntN(churnServices), func(s *corev1.Service) { c.note(&s.ObjectMeta) })
}

func (c *churnCluster) sliceMetadata() {
	c.writeSlice(c.rng.IntN(churnServices), func(s *discoveryv1.EndpointSlice) { c.note(&s.ObjectMeta) })
}

// note changes a label and an annotation.
func (c *churnCluster) note(m *metav1.ObjectMeta) {
	m.Labels, m.Annotations = maps.Clone(m.Labels), maps.Clone(m.Annotations)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Labels["example.com/generation"] = strconv.Itoa(c.version)
	m.Annotations["example.com/checked"] = strconv.Itoa(c.version)
}

// flap lets a readiness probe fail and succeed again. Each is a write of the pod and one of the slice.
func (c *churnCluster) flap(service, endpoint int) {
	for _, ready := range []bool{false, true} {
		c.unwatched() // the pod
		c.writeSlice(service, func(s *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: c.now.Format(time.RFC3339Nano)}
			s.Endpoints[endpoint].Conditions = discoveryv1.EndpointConditions{Ready: new(ready), Serving: new(ready), Terminating: new(false)}
		})
	}
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

func (c *churnCluster) flapWhere(used bool) {
	for {
		service, endpoint := c.rng.IntN(churnServices), c.rng.IntN(churnPodsEach)
		if c.uses(service, endpoint) == used {
			c.flap(service, endpoint)
			return
		}
	}
}

func (c *churnCluster) flapElsewhere() { c.flapWhere(false) }
func (c *churnCluster) flapHere()      { c.flapWhere(true) }

// rollout replaces the pods of a service one by one, as a Deployment with maxSurge 1 and maxUnavailable 0 does.
func (c *churnCluster) rollout() {
	const deploymentWrites, replicaSetWrites = 3, 6 // for each pod, as a Deployment's controller makes them
	service := c.rng.IntN(churnServices)
	for i := range churnPodsEach {
		for range deploymentWrites + replicaSetWrites {
			c.unwatched()
		}
		for range 4 { // the new pod: created, bound to a node, running, ready
			c.unwatched()
		}
		fresh := c.newEndpoint(service, i)
		fresh.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
		c.writeSlice(service, func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, fresh) })
		c.writeSlice(service, func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[len(s.Endpoints)-1].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
		})
		for range 3 { // the old pod: deletion asked for, stopped, gone
			c.unwatched()
		}
		c.writeSlice(service, func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		})
		c.writeSlice(service, func(s *discoveryv1.EndpointSlice) { s.Endpoints = slices.Delete(s.Endpoints, 0, 1) })
	}
}

// hour lets everything happen that happens in an hour, in random order, and calls after following each.
func (c *churnCluster) hour(mix []noise, after func(n *noise) error) error {
	var order []*noise
	for i := range mix {
		for range mix[i].hourly {
			order = append(order, &mix[i])
		}
	}
	c.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, n := range order {
		c.now = c.now.Add(time.Hour / time.Duration(len(order)))
		n.happen(c)
		if err := after(n); err != nil {
			return err
		}
	}
	return nil
}
