package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Answer is the answer of an API server to questions of a service proxy for a Node.
type Answer struct {
	Version string        // of the API server
	Took    time.Duration // from the question to the version
	// Ahead is how far the API server's clock is ahead of this machine's, to the second. It is zero if the API server does not say.
	Ahead time.Duration
	// Refused are the kinds of objects that cannot be listed, with the permission that is missing.
	Refused []error
	// NodeExists reports whether the API server has the Node, if NodeKnown is set: a proxy may not read it.
	NodeExists, NodeKnown bool
}

// maxVersion is how many bytes of the answer about the version are read.
const maxVersion = 64 << 10

// Ask asks an API server for its version, and for one object of each kind that a proxy cannot do without. An error means that it cannot be
// reached, or answers something else.
func Ask(ctx context.Context, config *rest.Config, node string) (*Answer, error) {
	a, err := askVersion(ctx, config)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(config)
	if err != nil {
		return nil, err
	}
	for _, k := range []struct {
		version schema.GroupVersion
		plural  string
	}{{corev1.SchemeGroupVersion, "services"}, {discoveryv1.SchemeGroupVersion, "endpointslices"}, {corev1.SchemeGroupVersion, "nodes"}} {
		if err := r.one(ctx, k.version, k.plural); err != nil {
			a.Refused = append(a.Refused, err)
		}
	}
	body, err := r.clients[corev1.SchemeGroupVersion].Get().Resource("nodes").Name(node).Stream(ctx)
	if err == nil {
		err = body.Close()
	}
	a.NodeExists, a.NodeKnown = err == nil, err == nil || apierrors.IsNotFound(err)
	return a, nil
}

// askVersion is a request of its own, as client-go does not hand out the headers of answers.
func askVersion(ctx context.Context, config *rest.Config) (*Answer, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), nil)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	took := time.Since(began)
	body, err := io.ReadAll(io.LimitReader(response.Body, maxVersion))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", request.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(body, &version); err != nil || version.GitVersion == "" {
		return nil, fmt.Errorf("%s: the answer is no version of Kubernetes", request.URL)
	}
	a := &Answer{Version: version.GitVersion, Took: took}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		// The header leaves out fractions of a second.
		a.Ahead = (date.Sub(began.Add(took/2)) + time.Second/2).Round(time.Second)
	}
	return a, nil
}

// one lists one object of a kind. A list is refused as a watch is, in all roles that are known.
func (r *Reader) one(ctx context.Context, version schema.GroupVersion, plural string) error {
	options := metav1.ListOptions{Limit: 1}
	body, err := r.clients[version].Get().Resource(plural).VersionedParams(&options, metav1.ParameterCodec).Stream(ctx)
	if err == nil {
		err = body.Close()
	}
	if apierrors.IsForbidden(err) {
		err = errors.Join(err, fmt.Errorf(`a role with {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]} allows it`, version.Group, plural))
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", plural, err)
	}
	return nil
}
