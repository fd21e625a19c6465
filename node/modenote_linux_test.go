package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
)

// TestModeIsReported: a mode that nobody chose, and one that cannot run, are reported once in the log and as an Event about the Node.
func TestModeIsReported(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no iptables programs
	var log strings.Builder
	n := &Node{log: slog.New(slog.NewTextHandler(&log, nil)), events: make(chan model.Event, maxEvents)}
	n.pipeline.Store(&pipeline{name: func() string { return "node-a" }})
	for _, step := range []struct {
		mode                config.Mode
		runs                config.Mode
		reason, note, lines string
	}{
		{"", config.ModeNFTables, "KubeProxyDefaultMode", "No kube-proxy mode specified: defaulting to nftables; set mode", "no kube-proxy mode specified"},
		{"", config.ModeNFTables, "", "", ""}, // it has been reported
		{config.ModeNFTables, config.ModeNFTables, "", "", ""},
		{config.ModeIPTables, config.ModeNFTables, "KubeProxyModeFallback", "Mode iptables cannot run on this node, and nftables takes its place: iptables: ", "mode=iptables"},
		{config.ModeIPTables, config.ModeNFTables, "", "", ""},
		{"", config.ModeNFTables, "KubeProxyDefaultMode", "before Kubernetes 1.40, kube-proxy itself defaults to iptables", "no kube-proxy mode specified"},
	} {
		log.Reset()
		c := config.Default()
		c.Mode, c.AllowModeFallback = step.mode, true
		chosen, err := n.choose(c)
		if err != nil || chosen.mode != step.runs {
			t.Fatalf("mode %q: chosen is %v, %v", step.mode, chosen, err)
		}
		if n.noteMode(chosen) {
			n.reportMode()
		}
		var got model.Event
		select {
		case got = <-n.events:
		default:
		}
		if got.Reason != step.reason || !strings.Contains(got.Note, step.note) || got.Reason != "" && (got.Kind != "Node" || got.Name != "node-a" || !got.Warning || got.Action != "StartKubeProxy") {
			t.Errorf("mode %q: the event is %+v, want %s: %s", step.mode, got, step.reason, step.note)
		}
		if strings.Contains(log.String(), "level=WARN") != (step.lines != "") || !strings.Contains(log.String(), step.lines) {
			t.Errorf("mode %q: logged %q, want %q", step.mode, log.String(), step.lines)
		}
	}
	c := config.Default()
	c.Mode, c.AllowModeFallback = config.ModeIPTables, false
	if chosen, err := n.choose(c); err != nil || chosen.mode != config.ModeIPTables {
		t.Errorf("without allowModeFallback: %v, %v; want mode iptables, which fails when it is opened", chosen, err)
	}
}

// TestRefusedModeIsNotReported: a mode that cannot run is reported once another one has taken its place, and not when the configuration is refused.
func TestRefusedModeIsNotReported(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no iptables programs
	var log strings.Builder
	f := &fakeDataplane{mode: config.ModeNFTables, reconfigureErr: errRefused}
	n := &Node{log: slog.New(slog.NewTextHandler(&log, nil)), events: make(chan model.Event, maxEvents), dataplane: newFakeSwitchable(t, f.of())}
	p := &pipeline{name: func() string { return "node-a" }}
	n.pipeline.Store(p)
	c := config.Default()
	c.Mode, c.AllowModeFallback = config.ModeIPTables, true
	if err := n.reconfigureDataplane(p, c); !errors.Is(err, errRefused) {
		t.Fatalf("the configuration is not refused: %v", err)
	}
	if len(n.events) > 0 || log.Len() > 0 {
		t.Errorf("%d events are reported of a configuration that is refused, and the log is %q", len(n.events), &log)
	}
	f.reconfigureErr = nil
	if err := n.reconfigureDataplane(p, c); err != nil {
		t.Fatal(err)
	}
	if len(n.events) != 1 || !strings.Contains(log.String(), "mode=iptables") {
		t.Errorf("%d events are reported of a mode that cannot run, and the log is %q", len(n.events), &log)
	}
}
