package kube_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/source/kube"
)

// nodeServer is an API server that has Node node-a, and serves lists and merge patches of it.
type nodeServer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	node    map[string]any // nil: it does not exist
	refused map[string]int // status of requests, by method
	writers int            // how many others write between a list and a patch
	asked   []string       // the requests
}

func newNodeServer(t *testing.T, annotations map[string]any) *nodeServer {
	s := &nodeServer{t: t, refused: map[string]int{}, node: map[string]any{
		"metadata": map[string]any{"name": "node-a", "resourceVersion": "7", "annotations": annotations, "labels": map[string]any{"zone": "z"}},
		"spec":     map[string]any{"podCIDR": "10.1.0.0/24"},
	}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "nodes: " + reason,
		})
	}
	if code := s.refused[r.Method]; code != 0 {
		refuse(code, strings.ReplaceAll(http.StatusText(code), " ", ""))
		return
	}
	switch r.Method {
	case http.MethodGet:
		items := []any{}
		if s.node != nil {
			items = append(items, s.node)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": items})
		if s.writers > 0 {
			s.writers--
			s.bump()
		}
	case http.MethodPatch:
		if got := r.Header.Get("Content-Type"); got != "application/merge-patch+json" {
			s.t.Errorf("the patch is of type %s", got)
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		var patch map[string]any
		if err := json.Unmarshal(text, &patch); err != nil {
			s.t.Errorf("%s: %v", text, err)
		}
		metadata := s.node["metadata"].(map[string]any)
		if patch["metadata"].(map[string]any)["resourceVersion"] != metadata["resourceVersion"] {
			refuse(http.StatusConflict, "Conflict")
			return
		}
		s.node = merge(s.node, patch).(map[string]any)
		s.bump()
		_ = json.NewEncoder(w).Encode(s.node)
	default:
		s.t.Errorf("%s %s is asked for", r.Method, r.URL)
	}
}

// bump gives the Node the next version.
func (s *nodeServer) bump() {
	metadata := s.node["metadata"].(map[string]any)
	n, _ := strconv.Atoi(metadata["resourceVersion"].(string))
	metadata["resourceVersion"] = strconv.Itoa(n + 1)
}

// merge applies a JSON merge patch, RFC 7396.
func merge(target, patch any) any {
	fields, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged, _ := target.(map[string]any)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range fields {
		if value == nil {
			delete(merged, name)
		} else {
			merged[name] = merge(merged[name], value)
		}
	}
	return merged
}

// rest is the Node without its annotations and version, and the annotations.
func (s *nodeServer) state() (rest, annotations string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metadata := s.node["metadata"].(map[string]any)
	return fmt.Sprint(metadata["name"], metadata["labels"], s.node["spec"]), fmt.Sprint(metadata["annotations"])
}

func (s *nodeServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.asked
	s.asked = nil
	return taken
}

func (s *nodeServer) source(change ...func(*kube.Options)) *kube.Source {
	s.t.Helper()
	o := kube.Options{Config: &rest.Config{Host: s.URL, QPS: -1}, NodeName: "node-a"}
	for _, c := range change {
		c(&o)
	}
	src, err := kube.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return src
}

// TestEdgeAnnotation follows the annotation of this Node through what it may have been before. Nothing else of the Node changes.
func TestEdgeAnnotation(t *testing.T) {
	const key = "switchyard.net/edge"
	for title, tt := range map[string]struct {
		before              map[string]any
		announced           string // empty: as before, with an error
		withdrawn           string
		patches, unpatching int
	}{
		"none":                         {nil, "map[switchyard.net/edge:v1,7635]", "map[]", 1, 1},
		"annotations of others":        {map[string]any{"a": "b"}, "map[a:b switchyard.net/edge:v1,7635]", "map[a:b]", 1, 1},
		"of an earlier process":        {map[string]any{key: "v1,7635"}, "map[switchyard.net/edge:v1,7635]", "map[]", 0, 1},
		"with another port":            {map[string]any{key: "v1,9"}, "map[switchyard.net/edge:v1,7635]", "map[]", 1, 1},
		"of a later version, that was": {map[string]any{key: "v12,7635,x"}, "map[switchyard.net/edge:v1,7635]", "map[]", 1, 1},
		"of an operator":               {map[string]any{key: "never"}, "", "map[switchyard.net/edge:never]", 0, 0},
		"empty, of an operator":        {map[string]any{key: ""}, "", "map[switchyard.net/edge:]", 0, 0},
		"nearly ours":                  {map[string]any{key: "vx,7635"}, "", "map[switchyard.net/edge:vx,7635]", 0, 0},
	} {
		t.Run(title, func(t *testing.T) {
			s := newNodeServer(t, tt.before)
			src := s.source()
			rest, before := s.state()
			err := src.AnnounceEdge(t.Context(), 7635)
			want := tt.announced
			if want == "" {
				want = before
			}
			if _, got := s.state(); got != want || (err != nil) != (tt.announced == "") {
				t.Errorf("announced: %s, %v, want %s", got, err, want)
			}
			if err != nil && !strings.Contains(err.Error(), "Node node-a: annotation switchyard.net/edge is") {
				t.Errorf("the error is %v", err)
			}
			expectRequests(t, s.requests(), tt.patches)
			for range 2 {
				if err := src.WithdrawEdge(t.Context()); err != nil {
					t.Error(err)
				}
				if _, got := s.state(); got != tt.withdrawn {
					t.Errorf("withdrawn: %s, want %s", got, tt.withdrawn)
				}
				expectRequests(t, s.requests(), tt.unpatching)
				tt.unpatching = 0
			}
			if after, _ := s.state(); after != rest {
				t.Errorf("the Node was %s, and is %s", rest, after)
			}
		})
	}
}

// expectRequests expects a list of the Node alone, and patches.
func expectRequests(t *testing.T, asked []string, patches int) {
	t.Helper()
	want := []string{"GET /api/v1/nodes?fieldSelector=metadata.name%3Dnode-a"}
	for range patches {
		want = append(want, "PATCH /api/v1/nodes/node-a")
	}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("the requests are %q, want %q", asked, want)
	}
}

// TestEdgeAnnotationBesideOthers: the Node changes between reading and writing, as it does when kubelet reports its status.
func TestEdgeAnnotationBesideOthers(t *testing.T) {
	s := newNodeServer(t, nil)
	src := s.source()
	s.writers = 2
	if err := src.AnnounceEdge(t.Context(), 7635); err != nil {
		t.Error(err)
	}
	if _, got := s.state(); got != "map[switchyard.net/edge:v1,7635]" {
		t.Errorf("the annotations are %s", got)
	}
	s.writers = 100
	if err := src.WithdrawEdge(t.Context()); err == nil || s.writers < 90 {
		t.Errorf("%v after %d tries: nobody lets it write", err, 100-s.writers)
	}
}

// TestEdgeAnnotationRefused names what is missing.
func TestEdgeAnnotationRefused(t *testing.T) {
	const rule = `add the rule {apiGroups: [""], resources: ["nodes"], verbs: ["%s"]} to a ClusterRole of this user`
	s := newNodeServer(t, nil)
	for _, tt := range []struct {
		method string
		code   int
		want   string
	}{
		{http.MethodPatch, http.StatusForbidden, fmt.Sprintf(rule, "patch")},
		{http.MethodGet, http.StatusForbidden, fmt.Sprintf(rule, "list")},
		{http.MethodPatch, http.StatusUnprocessableEntity, "nodes: UnprocessableEntity"},
	} {
		s.refused = map[string]int{tt.method: tt.code}
		err := s.source().AnnounceEdge(t.Context(), 7635)
		if err == nil || !strings.HasPrefix(err.Error(), "announce the edge of Node node-a: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %d: %v, want %s", tt.method, tt.code, err, tt.want)
		}
	}
	s.refused, s.node = nil, nil
	if err := s.source().WithdrawEdge(t.Context()); err == nil || !strings.Contains(err.Error(), "withdraw the edge of Node node-a: there is no such Node") {
		t.Errorf("without the Node: %v", err)
	}
	if err := s.source().AnnounceEdge(t.Context(), 0); err == nil {
		t.Error("port 0 is announced")
	}
	if err := s.source(func(o *kube.Options) { o.NodeName, o.AllNodes = "", true }).AnnounceEdge(t.Context(), 1); err == nil {
		t.Error("a source of all Nodes announces one")
	}
}
