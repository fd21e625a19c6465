package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestPodSettings: the settings for pods apply to the pods of nodes and relays, and to no others.
func TestPodSettings(t *testing.T) {
	affinity := func(key string) values {
		return values{"nodeAffinity": values{"requiredDuringSchedulingIgnoredDuringExecution": values{
			"nodeSelectorTerms": []any{values{"matchExpressions": []any{values{"key": key, "operator": "Exists"}}}},
		}}}
	}
	env := func(value string) []any { return []any{values{"name": "HTTPS_PROXY", "value": value}} }
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, split := range []bool{false, true} {
		all := rendered(t, values{
			"image":       values{"repository": "example.org/proxy", "tag": "v1", "digest": digest},
			"extraArgs":   []any{"--min-sync-period=1s"},
			"env":         env("of-nodes"),
			"affinity":    affinity("nodes"),
			"tolerations": []any{values{"key": "a", "operator": "Exists"}}, "priorityClassName": "of-nodes",
			"split": values{"enabled": split, "extraArgs": []any{"--max-connection-age=1h"}},
			"relay": values{
				"enabled": true, "extraArgs": []any{"--max-connection-age=2h"}, "env": env("of-relays"), "affinity": affinity("relays"),
				"tolerations": []any{values{"key": "b", "operator": "Exists"}}, "priorityClassName": "of-relays",
			},
		})
		relay := objects{"Deployment switchyard-relay": all["Deployment switchyard-relay"]}
		delete(all, "Deployment switchyard-relay")
		last := map[string]string{"switchyard": "--min-sync-period=1s", "apply": "--min-sync-period=1s", "serve": "--max-connection-age=1h", "relay": "--max-connection-age=2h"}
		for title, c := range map[string]struct {
			pod                      *corev1.PodSpec
			affinity, toleration, of string
		}{"nodes": {podOf(t, all), "nodes", "a", "of-nodes"}, "relays": {podOf(t, relay), "relays", "b", "of-relays"}} {
			terms := c.pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if terms[0].MatchExpressions[0].Key != c.affinity || len(c.pod.Tolerations) != 1 || c.pod.Tolerations[0].Key != c.toleration || c.pod.PriorityClassName != c.of {
				t.Errorf("%s: affinity %v, tolerations %v, priority %s", title, terms, c.pod.Tolerations, c.pod.PriorityClassName)
			}
			for _, container := range slices.Concat(c.pod.InitContainers, c.pod.Containers) {
				if container.Image != "example.org/proxy@"+digest || variable(&container, "HTTPS_PROXY") != c.of {
					t.Errorf("%s: %s has the image %s and the variables %v", title, container.Name, container.Image, container.Env)
				}
			}
			for _, container := range c.pod.Containers {
				if got := container.Args[len(container.Args)-1]; got != last[container.Name] {
					t.Errorf("%s: the last argument of %s is %s, want %s", title, container.Name, got, last[container.Name])
				}
			}
		}
	}
}

// TestAppVersion: the chart names a version of the program, not a tag that moves.
func TestAppVersion(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "helm", "switchyard", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ Version, AppVersion string }
	if err := sigsyaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(chart.Version) || chart.AppVersion != "v"+chart.Version {
		t.Errorf("the chart has version %s and appVersion %s", chart.Version, chart.AppVersion)
	}
}
