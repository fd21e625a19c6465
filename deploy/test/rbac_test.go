package test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/test/await"
)

// permission is what somebody may do, or does.
type permission struct{ group, resource, verb string }

// recorder is an API server that has nothing, and remembers what it is asked for.
type recorder struct {
	mu    sync.Mutex
	asked map[permission]bool
}

var kinds = map[string]string{
	"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "NodeList", "namespaces": "NamespaceList", "servicecidrs": "ServiceCIDRList",
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	p := permission{resource: path[len(path)-1], verb: "list"}
	version := "v1"
	if path[0] == "apis" {
		p.group = path[1]
		version = path[1] + "/" + path[2]
	}
	if req.URL.Query().Has("watch") {
		p.verb = "watch"
	}
	r.mu.Lock()
	r.asked[p] = true
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case req.URL.Query().Has("sendInitialEvents"): // not offered, so that the list is asked for
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		})
	case p.verb == "watch":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": kinds[p.resource], "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{},
		})
	}
}

type discard struct{}

func (discard) Update([]model.Object, []model.Ref) {}
func (discard) Complete()                          {}

// requested is what source/kube asks an API server for, about one node or all.
func requested(t *testing.T, allNodes bool) map[permission]bool {
	t.Helper()
	r := &recorder{asked: make(map[permission]bool)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	node := "node-a"
	if allNodes {
		node = ""
	}
	src, err := kube.New(kube.Options{
		Config:   &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
		NodeName: node, AllNodes: allNodes,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- src.Run(ctx, discard{}) }()
	defer func() { cancel(); <-done }()
	var asked map[permission]bool
	await.Until(t, "every kind is asked for", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		asked = maps.Clone(r.asked)
		return len(asked) == 2*len(kinds)
	}, func() any { return asked }, func() any { return src.Problems() })
	return asked
}

// granted is what roles permit.
func granted(roles ...*rbacv1.ClusterRole) map[permission]bool {
	all := make(map[permission]bool)
	for _, role := range roles {
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[permission{group, resource, verb}] = true
					}
				}
			}
		}
	}
	return all
}

// reported is what the program says about its Node.
var reported = map[permission]bool{
	{"events.k8s.io", "events", "create"}: true,
}

func TestRolesPermitWhatIsRequested(t *testing.T) {
	want := requested(t, false)
	maps.Copy(want, reported)
	for title, all := range deployments(t) {
		has := granted(into[rbacv1.ClusterRole](t, all["ClusterRole switchyard"]))
		if missing, extra := less(want, has), less(has, want); len(missing)+len(extra) > 0 {
			t.Errorf("%s: the role lacks %v, and permits %v, which nobody asks for", title, missing, extra)
		}
		checkBinding(t, into[rbacv1.ClusterRoleBinding](t, all["ClusterRoleBinding switchyard"]), "switchyard")
	}
}

// TestKubeadmRoles checks that kubeadm's role is enough together with ours.
func TestKubeadmRoles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "kubeadm", "namespaces.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours := read(t, text)
	role := into[rbacv1.ClusterRole](t, ours["ClusterRole switchyard-namespaces"])
	has := granted(role, into[rbacv1.ClusterRole](t, kubeadm(t)["ClusterRole system:node-proxier"]))
	want := requested(t, false)
	maps.Copy(want, reported)
	if missing := less(want, has); len(missing) > 0 {
		t.Errorf("the roles lack %v", missing)
	}
	if extra := less(granted(role), want); len(extra) > 0 {
		t.Errorf("our role permits %v, which nobody asks for", extra)
	}
	checkBinding(t, into[rbacv1.ClusterRoleBinding](t, ours["ClusterRoleBinding switchyard-namespaces"]), "kube-proxy")
}

func checkBinding(t *testing.T, b *rbacv1.ClusterRoleBinding, account string) {
	t.Helper()
	want := rbacv1.Subject{Kind: "ServiceAccount", Name: account, Namespace: "kube-system"}
	if b.RoleRef != (rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: b.Name}) || !slices.Equal(b.Subjects, []rbacv1.Subject{want}) {
		t.Errorf("binding %s is from %+v to %+v", b.Name, b.Subjects, b.RoleRef)
	}
}

// less returns what is in a and not in b, sorted.
func less(a, b map[permission]bool) []string {
	var rest []string
	for p := range a {
		if !b[p] {
			rest = append(rest, strings.Join([]string{p.verb, p.resource, p.group}, " "))
		}
	}
	slices.Sort(rest)
	return rest
}
