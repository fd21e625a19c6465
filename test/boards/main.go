// Command boards writes the Grafana dashboards in deploy, and copies the alerts of deploy/prometheus to Kustomize and the chart. Its
// tests parse each query of boards and alerts as Prometheus does, and compare their metrics and labels with the metrics of a process.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var (
	deploy = filepath.Join("..", "..", "deploy")
	// alerts is the source of the alerts, a rule file of Prometheus.
	alerts = filepath.Join(deploy, "prometheus", "alerts.yaml")
)

func main() {
	files, err := written()
	for path, data := range files {
		err = errors.Join(err, os.WriteFile(path, data, 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "boards:", err)
		os.Exit(1)
	}
}

// written returns the content of the files that this program writes, by path.
func written() (map[string][]byte, error) {
	monitoring, chart := filepath.Join(deploy, "kustomize", "monitoring"), filepath.Join(deploy, "helm", "switchyard", "files")
	files := map[string][]byte{}
	for _, b := range boards {
		data, err := b.encode()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.file, err)
		}
		files[filepath.Join(monitoring, "boards", b.file)] = data
		files[filepath.Join(chart, "boards", b.file)] = data
	}
	source, err := os.ReadFile(alerts)
	if err != nil {
		return nil, err
	}
	_, groups, ok := strings.Cut(string(source), "\ngroups:\n")
	if !ok {
		return nil, fmt.Errorf("%s has no groups", alerts)
	}
	files[filepath.Join(chart, "alerts.yaml")] = []byte(copied + "groups:\n" + groups)
	files[filepath.Join(monitoring, "rules.yaml")] = []byte(copied + ruleHead + indent(groups))
	return files, nil
}

const (
	copied   = "# Copied from deploy/prometheus/alerts.yaml by 'go run .' in test/boards.\n"
	ruleHead = `apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: switchyard
  namespace: kube-system
spec:
  groups:
`
)

// indent moves lines to the right by a level of YAML.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}

// Sizes of panels, in units of Grafana's grid, which is 24 wide.
const (
	gridWidth   = 24
	statWidth   = 4
	statHeight  = 4
	graphWidth  = 12
	graphHeight = 8
)

// object is one of JSON.
type object map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// encode returns the dashboard as Grafana reads it.
func (b *board) encode() ([]byte, error) {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range b.variables {
		list = append(list, object{
			"name": v.name, "label": v.label, "type": "query", "datasource": source, "query": object{"query": v.query, "refId": v.name},
			"definition": v.query, "refresh": 2, "sort": 1, "includeAll": v.name == "instance", "multi": v.name == "instance",
		})
	}
	data, err := json.MarshalIndent(object{
		"uid": b.uid, "title": b.title, "description": b.description, "tags": []string{"switchyard"}, "schemaVersion": 39, "version": 1,
		"editable": true, "refresh": "30s", "timezone": "browser", "time": object{"from": "now-1h", "to": "now"},
		"templating": object{"list": list}, "panels": b.panels(),
	}, "", "  ")
	return append(data, '\n'), err
}

// panels lays the rows out from top to bottom.
func (b *board) panels() []object {
	var all []object
	y := 0
	add := func(o object, x, width, height int) {
		o["id"], o["gridPos"] = len(all)+1, object{"x": x, "y": y, "w": width, "h": height}
		all = append(all, o)
	}
	for _, r := range b.rows {
		add(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}}, 0, gridWidth, 1)
		y++
		x, height := 0, 0
		for _, p := range r.panels {
			width, tall := graphWidth, graphHeight
			if p.kind == "stat" {
				width, tall = statWidth, statHeight
			}
			if x+width > gridWidth {
				x, y, height = 0, y+height, 0
			}
			add(p.encode(), x, width, tall)
			x, height = x+width, max(height, tall)
		}
		y += height
	}
	return all
}

func (p *panel) encode() object {
	kind := p.kind
	if kind == "" {
		kind = "timeseries"
	}
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend, "datasource": source,
			"instant": kind != "timeseries", "range": kind == "timeseries", "format": map[bool]string{true: "table", false: "time_series"}[kind == "table"],
		})
	}
	steps := []object{{"color": "green", "value": nil}}
	if p.warn > 0 {
		steps = append(steps, object{"color": "yellow", "value": p.warn})
	}
	if p.bad > 0 {
		steps = append(steps, object{"color": "red", "value": p.bad})
	}
	defaults := object{"thresholds": object{"mode": "absolute", "steps": steps}}
	if p.unit != "" {
		defaults["unit"] = p.unit
	}
	return object{
		"type": kind, "title": p.title, "description": p.description, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
	}
}
