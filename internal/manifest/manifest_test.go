package manifest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// report renders what Decode returned: a line for each object, then one for each error.
func report(objects []Object, errs []error) string {
	var b strings.Builder
	for _, o := range objects {
		name := o.Object.(metav1.Object)
		fmt.Fprintf(&b, "%s:%d: %s", o.File, o.Line, o.Object.GetObjectKind().GroupVersionKind().Kind)
		fmt.Fprintf(&b, " %s\n", strings.TrimPrefix(name.GetNamespace()+"/"+name.GetName(), "/"))
	}
	for _, err := range errs {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	return b.String()
}

// TestStories runs testdata/decode: each archive has one input file and the expected result in "want".
func TestStories(t *testing.T) {
	stories, err := filepath.Glob("testdata/decode/*.txtar")
	if err != nil || len(stories) == 0 {
		t.Fatal("no stories:", err)
	}
	for _, story := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(story), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(story)
			if err != nil {
				t.Fatal(err)
			}
			if len(archive.Files) != 2 || archive.Files[1].Name != "want" {
				t.Fatal("a story is an input file and a file named want")
			}
			input := archive.Files[0]
			got := report(Decode(input.Name, input.Data))
			if diff := cmp.Diff(string(archive.Files[1].Data), got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// TestValues checks that decoded values equal the written ones.
func TestValues(t *testing.T) {
	objects, errs := Decode("f.yaml", []byte(`
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: &labels {app: web, "1": one}
  annotations:
    <<: [*labels, {app: other, more: "yes"}]
    own: |
      two
      lines
spec:
  selector: *labels
  type: LoadBalancer
  allocateLoadBalancerNodePorts: off
  publishNotReadyAddresses: yes
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0x10}}
  clusterIPs: [10.0.0.1, "fd00::1"]
  externalName: null
  ports:
  - {name: http, port: 80, targetPort: http}
  - {name: dns, port: 5.3e1, targetPort: 5353, protocol: UDP}
`))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	got := objects[0].Object.(*corev1.Service)
	want := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        "web",
			Labels:      map[string]string{"app": "web", "1": "one"},
			Annotations: map[string]string{"app": "web", "1": "one", "more": "yes", "own": "two\nlines\n"},
		},
		Spec: corev1.ServiceSpec{
			Selector:                      map[string]string{"app": "web", "1": "one"},
			Type:                          corev1.ServiceTypeLoadBalancer,
			AllocateLoadBalancerNodePorts: new(false),
			PublishNotReadyAddresses:      true,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(16))},
			},
			ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intOrString("http")},
				{Name: "dns", Port: 53, TargetPort: intOrString(5353), Protocol: corev1.ProtocolUDP},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestEncodings checks what editors on other systems do to a file.
func TestEncodings(t *testing.T) {
	text := "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: b\n"
	want := "f:1: Namespace a\nf:6: Namespace b\n"
	for name, input := range map[string]string{
		"plain":      text,
		"bom":        "\ufeff" + text,
		"crlf":       strings.ReplaceAll(text, "\n", "\r\n"),
		"no newline": strings.TrimSpace(text),
	} {
		if diff := cmp.Diff(want, report(Decode("f", []byte(input)))); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
	}
	want = "f:3: Namespace a\nf:8: Namespace b\n"
	if diff := cmp.Diff(want, report(Decode("f", []byte("\ufeff%YAML 1.1\n---\n"+text)))); diff != "" {
		t.Errorf("bom and directive: want (-), got (+):\n%s", diff)
	}
	want = "error: f:1: is UTF-16 text: save the file as UTF-8\n"
	if got := report(Decode("f", []byte("\xff\xfea\x00:\x00"))); got != want {
		t.Errorf("UTF-16: got %s", got)
	}
	want = "error: f:2: not valid YAML: control characters are not allowed\n"
	if got := report(Decode("f", []byte("kind: Service\nname: \x01\n"))); got != want {
		t.Errorf("control character: got %s", got)
	}
}

// TestAliasBomb checks that aliases cannot make a small file take long or much.
func TestAliasBomb(t *testing.T) {
	var labels, lists strings.Builder
	lists.WriteString("- &l0 {apiVersion: v1, kind: Namespace, metadata: {name: a}}\n")
	labels.WriteString("  x0: &x0 [a, b, c, d, e, f, g, h, i, j]\n")
	for i := 1; i < 12; i++ {
		ten := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 10), ", ")
		fmt.Fprintf(&labels, "  x%d: &x%d [%s]\n", i, i, ten)
		ten = strings.ReplaceAll(ten, "x", "l")
		fmt.Fprintf(&lists, "- &l%d {apiVersion: v1, kind: List, items: [%s]}\n", i, ten)
	}
	for name, input := range map[string]string{
		"in a field": "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n" + labels.String() + "  managedFields: [{fieldsV1: *x11}]\n",
		"as objects": "apiVersion: v1\nkind: List\nitems:\n" + lists.String(),
	} {
		objects, errs := Decode("f", []byte(input))
		if len(objects)+len(errs) > 2*(aliasAllowance+len(input)) {
			t.Errorf("%s: %d objects, %d errors", name, len(objects), len(errs))
		}
		if !strings.Contains(fmt.Sprint(errs), "too many values") {
			t.Errorf("%s: nothing is said of it", name)
		}
	}
}

// TestLocator checks that fields are found again in any document of the file.
func TestLocator(t *testing.T) {
	data := []byte(`# a comment
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: one, namespace: shop}
- apiVersion: v1
  kind: Service
  metadata:
    name: two
    labels:
      app.kubernetes.io/name: x
  spec:
    ports:
    - port: 80
    - port: 99999
`)
	objects, errs := Decode("f.yaml", data)
	if len(objects) != 3 || len(errs) > 0 {
		t.Fatal(objects, errs)
	}
	l := NewLocator("f.yaml", data)
	for _, c := range []struct {
		object int
		path   string
		want   string
	}{
		{2, "spec.ports[1].port", "f.yaml:21:13: Service two: spec.ports[1].port: wrong"},
		{2, "spec.ports[1].nodePort", "f.yaml:21:7: Service two: spec.ports[1].nodePort: wrong"},
		{2, "metadata.labels[app.kubernetes.io/name]", "f.yaml:17:31: Service two: metadata.labels[app.kubernetes.io/name]: wrong"},
		{1, "spec.clusterIP", "f.yaml:9:3: Service shop/one: spec.clusterIP: wrong"},
		{0, "metadata.name", "f.yaml:4:18: Namespace a: metadata.name: wrong"},
		{0, "metadata[", "f.yaml:4:11: Namespace a: metadata[: wrong"},
	} {
		got := l.Error(objects[c.object], c.path, fmt.Errorf("wrong")).Error()
		if got != c.want {
			t.Errorf("want %s\n got %s", c.want, got)
		}
	}
}

// TestTypes checks that the walk can read every field of every known kind: it knows no embedded pointers or interfaces.
func TestTypes(t *testing.T) {
	for kind := range knownKinds {
		input := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: a, creationTimestamp: null}\n", knownKinds[kind].apiVersion, kind)
		want := fmt.Sprintf("f:1: %s a\n", kind)
		if diff := cmp.Diff(want, report(Decode("f", []byte(input)))); diff != "" {
			t.Error(diff)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}], clusterIP: 10.0.0.1}\n",
		"apiVersion: v1\nkind: List\nitems:\n- &x {apiVersion: v1, kind: List, items: [*x]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: &m {<<: *m}\n",
		"a: &a {<<: [*a, *a]}\n---\n%YAML 1.1\n---\n...\n",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replicas":1e99}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, errs := Decode("f", data)
		if limit := 4 * (len(data) + aliasAllowance); len(objects)+len(errs) > limit {
			t.Errorf("%d objects and %d errors of %d bytes", len(objects), len(errs), len(data))
		}
		for _, o := range objects {
			if o.Line < 1 || o.Object.(metav1.Object).GetName() == "" {
				t.Errorf("object without line or name: %+v", o)
			}
			_ = NewLocator("f", data).Error(o, "spec.ports[0].port", fmt.Errorf("x")).Error()
		}
		checkHostile(t, data, objects, errs)
	})
}

// large returns a manifest of n Services and n EndpointSlices with 5 endpoints each, about 50 lines for each pair.
func large(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata:
  name: service-%[1]d
  namespace: bench
  labels:
    app.kubernetes.io/name: service-%[1]d
spec:
  type: ClusterIP
  clusterIP: 10.%[2]d.%[3]d.1
  clusterIPs:
  - 10.%[2]d.%[3]d.1
  selector:
    app: service-%[1]d
  ports:
  - name: http
    protocol: TCP
    port: 80
    targetPort: http
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: service-%[1]d-abcde
  namespace: bench
  labels:
    kubernetes.io/service-name: service-%[1]d
addressType: IPv4
ports:
- name: http
  protocol: TCP
  port: 8080
endpoints:
`, i, i>>8, i&255)
		for e := range 5 {
			fmt.Fprintf(&b, `- addresses:
  - 172.%d.%d.%d
  nodeName: node-%d
  conditions:
    ready: true
`, i>>8, i&255, e+1, e)
		}
	}
	return []byte(b.String())
}

func BenchmarkDecode(b *testing.B) {
	data := large(10_000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		objects, errs := Decode("f", data)
		if len(objects) != 20_000 || len(errs) > 0 {
			b.Fatal(len(objects), errs)
		}
		if s := objects[1].Object.(*discoveryv1.EndpointSlice); len(s.Endpoints) != 5 {
			b.Fatal(s)
		}
	}
	b.ReportMetric(float64(strings.Count(string(data), "\n")), "lines")
}

func intOrString(v any) intstr.IntOrString {
	if s, ok := v.(string); ok {
		return intstr.FromString(s)
	}
	return intstr.FromInt32(int32(v.(int)))
}
