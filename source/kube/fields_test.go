package kube

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// words are texts for fields by their names, "" for all others and now and then for these.
var words = map[string][]string{
	"": append([]string{
		"", "a", "b", "10.0.0.1", "TCP", "Local", "None", "VIP", "Proxy", "disabled", "2026-01-01T00:00:00Z", autoscalerTaint,
		optOutLabel, proxyNameLabel, corev1.LabelTopologyZone, discoveryv1.LabelServiceName, corev1.IsHeadlessService,
		corev1.EndpointsLastChangeTriggerTime, model.WeightAnnotation, model.CiliumWeightAnnotation, "switchyard.net/unknown", "service.cilium.io/unknown",
	}, model.ServiceAnnotations[:]...),
	"Kind":                     {"Pod", "Pod", "Node"},
	"Protocol":                 {"", "TCP", "UDP", "SCTP"},
	"ClusterIP":                {"", "10.0.0.1"},
	"ClusterIPs":               {"10.0.0.1"},
	"ExternalIPs":              {"10.0.0.2", "2001:db8::2"},
	"IP":                       {"", "10.0.0.3", "2001:db8::3"},
	"Address":                  {"10.0.0.4", "2001:db8::4"},
	"Addresses":                {"10.0.0.5"},
	"AddressType":              {"IPv4", "IPv4", "IPv4", "FQDN"},
	"PodCIDR":                  {"", "10.1.0.0/24"},
	"PodCIDRs":                 {"10.1.1.0/24", "2001:db8:1::/64"},
	"CIDRs":                    {"10.1.2.0/24", "2001:db8:2::/64"},
	"ExternalTrafficPolicy":    {"", "Local", "Cluster"},
	"InternalTrafficPolicy":    {"Local", "Cluster"},
	"SessionAffinity":          {"ClientIP", "None"},
	"Status":                   {"True", "False", "False", "Unknown"},
	"Reason":                   {"KubeletNotReady", "KubeletNotReady", "NodeStatusUnknown"},
	"Message":                  {"node is shutting down", "[container runtime is down, node is shutting down]", "CIDR is missing"},
	"Type":                     {"Ready", "Ready", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "InternalIP", "ExternalIP"},
	"LoadBalancerSourceRanges": {"10.1.3.0/24", "2001:db8:3::/64"},
}

// fill makes all of a field random.
func fill(rng *rand.Rand, name string, v reflect.Value) {
	switch known := v.Addr().Interface().(type) {
	case *metav1.Time:
		*known = metav1.Unix(rng.Int64N(1e9), 0)
		return
	case *metav1.FieldsV1:
		*known = *metav1.NewFieldsV1(strings.Repeat("x", rng.IntN(300)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		list := words[name]
		if list == nil || rng.IntN(100) == 0 {
			list = words[""]
		}
		v.SetString(list[rng.IntN(len(list))])
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int32, reflect.Int64:
		v.SetInt(rng.Int64N(100))
	case reflect.Uint8:
		v.SetUint(rng.Uint64N(100))
	case reflect.Pointer:
		if rng.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rng, name, v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rng.IntN(3), 3))
		for i := range v.Len() {
			fill(rng, name, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rng.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(rng, "", key)
			fill(rng, "", value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Name != "TypeMeta" {
				fill(rng, field.Name, v.Field(i))
			}
		}
	}
}

// TestFieldsDecoded reads random objects from protobuf one after another. Each must equal the fully decoded object.
func TestFieldsDecoded(t *testing.T) {
	options := gocmp.Options{
		gocmp.AllowUnexported(item{}),
		gocmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
		gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	for _, r := range resources("here", "", false) {
		t.Run(r.kind.String(), func(t *testing.T) {
			read, good := r.newReader(), 0
			for seed := range randcluster.Seeds(500, 30_000) {
				rng := rand.New(rand.NewPCG(seed, 1))
				object := reflect.New(reflect.TypeOf(r.example).Elem())
				fill(rng, "", object.Elem())
				want := strip(r.kind, object.Interface().(metav1.Object))
				b, err := object.Interface().(interface{ Marshal() ([]byte, error) }).Marshal()
				if err != nil {
					t.Fatal(err)
				}
				decoded, err := read(b)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				got := strip(r.kind, decoded)
				if diff := gocmp.Diff(want, got, options); diff != "" {
					t.Fatalf("seed %d: in whole (-), of the fields that are decoded (+):\n%s", seed, diff)
				}
				if want.fault == nil {
					good++
				}
			}
			if good < 100 {
				t.Errorf("only %d objects without a fault: that tests little", good)
			}
		})
	}
}
