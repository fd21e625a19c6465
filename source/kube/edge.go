package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-net/switchyard/model"
)

// edgeVersion is the version of the form in which this program takes packets.
const edgeVersion = "v1"

const (
	// edgeTimeout bounds one attempt, in which edgeTries are as many as there may be writers in between.
	edgeTimeout = 15 * time.Second
	edgeTries   = 5
	// maxNodeList is how many bytes are read of the list of one Node. The metadata of an object has less than 1 MiB.
	maxNodeList = 8 << 20
)

var _ model.WithEdge = (*Source)(nil)

// AnnounceEdge implements [model.WithEdge]. The Node gets the annotation switchyard.net/edge with the value v1,PORT. It replaces a value that
// Switchyard wrote, of any version. A value that does not look like that is somebody's who keeps the Node apart, and stays.
func (s *Source) AnnounceEdge(ctx context.Context, port uint16) error {
	if port == 0 {
		return errors.New("announce the edge: port is 0: name the UDP port at which this node takes packets")
	}
	return s.annotateEdge(ctx, "announce the edge", fmt.Sprintf("%s,%d", edgeVersion, port))
}

// WithdrawEdge implements [model.WithEdge]. It removes the annotation if Switchyard wrote it, and leaves other values alone.
func (s *Source) WithdrawEdge(ctx context.Context) error {
	return s.annotateEdge(ctx, "withdraw the edge", "")
}

// annotateEdge gives the annotation a value, empty for none. what begins errors.
func (s *Source) annotateEdge(ctx context.Context, what, value string) error {
	name := s.options.NodeName
	if s.options.AllNodes {
		return fmt.Errorf("%s: this source is of all Nodes: only the process on a node may annotate it", what)
	}
	ctx, cancel := context.WithTimeout(ctx, edgeTimeout)
	defer cancel()
	var err error
	for range edgeTries {
		if err = s.tryAnnotateEdge(ctx, value); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s of Node %s: %w", what, name, err)
	}
	return nil
}

// tryAnnotateEdge reads and writes the Node once. The error is a conflict if the Node has changed in between.
func (s *Source) tryAnnotateEdge(ctx context.Context, value string) error {
	node, err := s.readNode(ctx)
	if err != nil {
		return err
	}
	old, found := node.Annotations[model.EdgeAnnotation]
	switch {
	case old == value && found == (value != ""):
		return nil
	case found && !isEdgeValue(old) && value == "":
		return nil // somebody else's
	case found && !isEdgeValue(old):
		return fmt.Errorf("annotation %s is %.40q, which Switchyard has not written: remove it to let this node take part", model.EdgeAnnotation, old)
	}
	var wanted *string // null removes an annotation
	if value != "" {
		wanted = &value
	}
	// The version makes the API server refuse the patch if the Node has changed since.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]*string{model.EdgeAnnotation: wanted},
	}})
	if err != nil {
		return err
	}
	body, err := (*s.clients.Load())[corev1.SchemeGroupVersion].Patch(types.MergePatchType).Resource("nodes").Name(s.options.NodeName).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").Body(patch).Stream(ctx)
	if err != nil {
		return withRule(err, "patch")
	}
	return body.Close()
}

// readNode returns the metadata of this Node, by a list: that is what the role of a proxy permits.
func (s *Source) readNode(ctx context.Context) (*metav1.ObjectMeta, error) {
	body, err := (*s.clients.Load())[corev1.SchemeGroupVersion].Get().Resource("nodes").
		Param("fieldSelector", "metadata.name="+s.options.NodeName).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json").Stream(ctx)
	if err != nil {
		return nil, withRule(err, "list")
	}
	text, err := io.ReadAll(io.LimitReader(body, maxNodeList))
	if err = cmp.Or(err, body.Close()); err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the Node: %w", err)
	}
	for i := range list.Items {
		if m := &list.Items[i].Metadata; m.Name == s.options.NodeName {
			return m, nil
		}
	}
	return nil, errors.New("there is no such Node: name this Node by hostnameOverride or --hostname-override")
}

// withRule names the RBAC rule that permits a verb on nodes, if the API server does not.
func withRule(err error, verb string) error {
	if statusOf(err) != http.StatusForbidden {
		return err
	}
	return fmt.Errorf(`%w; add the rule {apiGroups: [""], resources: ["nodes"], verbs: [%q]} to a ClusterRole of this user`, err, verb)
}

// isEdgeValue reports whether a value looks like one that Switchyard writes, in any version: v, a number, and after a comma what that version
// needs.
func isEdgeValue(value string) bool {
	version, _, found := strings.Cut(value, ",")
	number, ok := strings.CutPrefix(version, "v")
	_, err := strconv.ParseUint(number, 10, 16)
	return found && ok && err == nil
}
