package dns

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// apiServer serves the objects in a file of manifests as an API server does, as far as CoreDNS asks: lists, and watches in which
// nothing happens.
func apiServer(t *testing.T, manifests string) (url string) {
	t.Helper()
	lists := map[string][]runtime.Object{"services": nil, "endpointslices": nil, "namespaces": nil}
	file, err := os.Open(manifests)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for documents := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var raw json.RawMessage
		if documents.Decode(&raw) != nil {
			break
		}
		var kind metav1.TypeMeta
		if err := json.Unmarshal(raw, &kind); err != nil {
			t.Fatal(err)
		}
		var object runtime.Object
		switch kind.Kind {
		case "Service":
			object = &corev1.Service{}
		case "EndpointSlice":
			object = &discoveryv1.EndpointSlice{}
		case "Namespace":
			object = &corev1.Namespace{}
		default:
			t.Fatalf("%s: kind %q is not known here", manifests, kind.Kind)
		}
		if err := json.Unmarshal(raw, object); err != nil {
			t.Fatal(err)
		}
		if s, ok := object.(*corev1.Service); ok && len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "" {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP} // as an API server does
		}
		plural := strings.ToLower(kind.Kind) + "s"
		lists[plural] = append(lists[plural], object)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			if r.URL.Query().Get("sendInitialEvents") != "" {
				http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
				return
			}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		items, ok := lists[path.Base(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		version, kind := "v1", "ServiceList"
		switch path.Base(r.URL.Path) {
		case "endpointslices":
			version, kind = "discovery.k8s.io/v1", "EndpointSliceList"
		case "namespaces":
			kind = "NamespaceList"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": "1"}, "items": items,
		})
	}))
	t.Cleanup(server.CloseClientConnections)
	return server.URL
}
