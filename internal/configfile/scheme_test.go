package configfile_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

const group = "kubeproxy.config.k8s.io/"

// TestObjects reads files with the machinery of Kubernetes, and expects what package configfile makes of them.
func TestObjects(t *testing.T) {
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), v1alpha2.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(s)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	for _, tt := range []struct{ version, text string }{
		{"v1alpha1", "apiVersion: " + group + "v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nclusterCIDR: 10.0.0.0/8\noomScoreAdj: 0\n"},
		{"v1alpha2", "apiVersion: " + group + "v1alpha2\nkind: KubeProxyConfiguration\nmode: ipvs\nsyncPeriod: 10s\nclientConnection: {qps: 0}\n" +
			"nodeIPOverride: [192.0.2.1]\nservices: {nodeExternalIPs: true}\n"},
	} {
		object, gvk, err := codecs.UniversalDeserializer().Decode([]byte(tt.text), nil, nil)
		if err != nil || gvk.Version != tt.version {
			t.Fatalf("%s: Decode = %v, %v", tt.version, gvk, err)
		}
		s.Default(object)
		var out bytes.Buffer
		if err := info.Serializer.Encode(object, &out); err != nil {
			t.Fatal(err)
		}
		wrote, _, err := configfile.Load(out.Bytes(), configfile.Options{})
		if err != nil {
			t.Fatalf("%s: %v\n%s", tt.version, err, out.String())
		}
		read, _, err := configfile.Load([]byte(tt.text), configfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		a, _ := configfile.Marshal(wrote)
		b, _ := configfile.Marshal(read)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: what is decoded, defaulted and encoded means\n%s\ninstead of\n%s", tt.version, a, b)
		}
		if clone := object.DeepCopyObject(); !reflect.DeepEqual(clone, object) || clone == object {
			t.Errorf("%s: DeepCopyObject = %+v", tt.version, clone)
		}
	}
	object, _, err := codecs.UniversalDeserializer().Decode(
		[]byte("apiVersion: "+group+"v1alpha2\nkind: KubeProxyInstanceConfiguration\nhostnameOverride: node-a\n"), nil, nil)
	if err != nil || *object.(*v1alpha2.InstanceObject).HostnameOverride != "node-a" {
		t.Errorf("Decode = %+v, %v", object, err)
	}
	for _, kind := range []string{"KubeProxyConfiguration", "KubeProxyInstanceConfiguration"} {
		text := "apiVersion: " + group + "v1alpha2\nkind: " + kind + "\nfrob: 1\n"
		if _, _, err := codecs.UniversalDeserializer().Decode([]byte(text), nil, nil); err == nil {
			t.Errorf("an unknown field of %s is no error", kind)
		}
	}
}
