package kube

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-net/switchyard/model"
)

// reporter names who reports events, as kube-proxy does, so that filters that operators have go on working.
const reporter = "kube-proxy"

var _ model.WithEvents = (*Source)(nil)

// Report creates an event. Whether that succeeds changes nothing for routing: callers log the error and go on.
func (s *Source) Report(ctx context.Context, e model.Event) error {
	host, err := os.Hostname()
	if err != nil {
		host = s.options.NodeName
	}
	now := time.Now()
	namespace := e.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where events about objects without one live
	}
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", e.Name, now.UnixNano()), Namespace: namespace},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reporter,
		ReportingInstance:   reporter + "-" + host,
		Action:              e.Action,
		Reason:              e.Reason,
		Note:                e.Note,
		Type:                corev1.EventTypeNormal,
		Regarding:           corev1.ObjectReference{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name},
	}
	if e.Kind == "Node" {
		event.Regarding.UID = types.UID(e.Name) // by which 'kubectl describe node' finds what kubelet and kube-proxy report
	}
	if e.Warning {
		event.Type = corev1.EventTypeWarning
	}
	err = (*s.clients.Load())[eventsv1.SchemeGroupVersion].Post().Namespace(namespace).Resource("events").Body(event).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("report the event %s about %s %s: %w", e.Reason, e.Kind, e.Name, err)
	}
	return nil
}
