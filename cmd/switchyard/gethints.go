package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/spelling"
)

// hints explain why a process has no rows to show, and suggest near misses.
type hints struct {
	ctx    context.Context
	client *adminClient
	kind   adminv1.Kind // of the rows that have the names
	what   string       // such a row
	// namespace is empty for all, and for what has none.
	namespace string
}

// keys returns the keys of rows in a namespace, or in all if it is empty.
func (h *hints) keys(namespace string, names ...string) ([]string, error) {
	return h.client.keys(h.ctx, &adminv1.Selection{Kind: h.kind, Namespace: namespace, Names: names})
}

// none is the error that there are no rows at all. name is the word for the rows in the command line.
func (h *hints) none(name string) error {
	if h.namespace == "" {
		return fmt.Errorf("there are no %s: 'switchyard get status' shows what the process knows", name)
	}
	all, err := h.keys("")
	if err != nil {
		return err
	}
	namespaces := make([]string, len(all))
	for i, key := range all {
		namespaces[i], _, _ = strings.Cut(key, "/")
	}
	text := fmt.Sprintf("there are no %s in namespace %s", name, h.namespace)
	like := spelling.Closest(h.namespace, namespaces)
	switch {
	case like == h.namespace: // of endpoints
		return fmt.Errorf("%s: 'switchyard get services -n %s' shows why", text, h.namespace)
	case like != "":
		return fmt.Errorf("%s; did you mean namespace %s?", text, like)
	case len(all) > 0:
		return errors.New(text + "; -A shows all namespaces")
	}
	return errors.New(text + ", and none in others")
}

// noName is the error that there is no row with a name, or for a pattern. Endpoints have the names of their Services.
func (h *hints) noName(name string) error {
	all, err := h.keys(h.namespace)
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i, key := range all {
		names[i] = nameIn(key)
	}
	if i := slices.Index(names, name); i >= 0 {
		return fmt.Errorf("there is no endpoint of Service %s: 'switchyard explain node svc/%s' says why", all[i], all[i])
	}
	text := fmt.Sprintf("there is no %s %q", h.what, name)
	if h.namespace == "" {
		return errors.New(text + spelling.Meant(name, names))
	}
	text += " in namespace " + h.namespace
	elsewhere, err := h.keys("", name)
	if err != nil {
		return err
	}
	if len(elsewhere) > 0 {
		return fmt.Errorf("%s; there is %s: give its namespace by -n, or -A", text, someOf(elsewhere, name))
	}
	return errors.New(text + spelling.Meant(name, names))
}
