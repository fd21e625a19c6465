package kubeapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/test/kubeapi"
)

// TestPatch: a merge patch changes what it names, and makes a version. One for an earlier version is refused.
func TestPatch(t *testing.T) {
	s := kubeapi.New()
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"x": "1", "y": "2"}}}
	if err := s.Put([]kubeapi.Object{node}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	for _, c := range []struct {
		name, patch string
		code        int
		want        string
	}{
		{"a", `{"metadata":{"resourceVersion":"2","annotations":{"x":null,"z":"3"}}}`, 200, `"annotations":{"y":"2","z":"3"}`},
		{"a", `{"metadata":{"resourceVersion":"2","annotations":{"y":"4"}}}`, 409, `"reason":"Conflict"`},
		{"a", `{"metadata":{"annotations":{"y":"4"}}}`, 200, `"resourceVersion":"4"`},
		{"b", `{}`, 404, `"reason":"NotFound"`},
		{"a", `[]`, 400, `"reason":"BadRequest"`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, server.URL+"/api/v1/nodes/"+c.name, strings.NewReader(c.patch))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %d %s, %v; want %d %s", c.patch, resp.StatusCode, text, err, c.code, c.want)
		}
	}
	if text := string(s.Object("nodes", "a")); !strings.Contains(text, `"y":"4","z":"3"`) || s.Object("nodes", "b") != nil {
		t.Errorf("the Node is %s", text)
	}
}
