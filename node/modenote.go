package node

import (
	"fmt"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
)

// modeNote is what operators should know about the choice of a dataplane. The zero value is nothing.
type modeNote struct {
	// blank is set if no mode was asked for.
	blank bool
	// lacking is the mode that cannot run on the node, and why the reason.
	lacking config.Mode
	why     string
}

const (
	chooseMode  = "set mode in the configuration file, or --proxy-mode; before Kubernetes 1.40, kube-proxy itself defaults to iptables"
	provideMode = "set mode to nftables, or provide what the mode needs: the image of the flavour iptables has the programs of mode iptables"
)

// noteMode logs what operators should know about a dataplane that was chosen, and reports whether that has changed.
func (n *Node) noteMode(chosen *dataplane) bool {
	note := chosen.note
	if was := n.modeNote.Swap(&note); was != nil && *was == note {
		return false
	}
	switch {
	case note.blank:
		n.log.Warn("no kube-proxy mode specified, defaulting to nftables", "remedy", chooseMode)
	case note.lacking != "":
		n.log.Warn("mode cannot run on this node, and nftables takes its place, because allowModeFallback is set",
			"mode", note.lacking, "error", note.why, "remedy", provideMode)
	}
	return true
}

// reportMode reports the same as an Event about the Node. KubeProxyDefaultMode is the reason that kube-proxy 1.37 gives.
func (n *Node) reportMode() {
	e := model.Event{Kind: "Node", Name: n.Name(), Warning: true, Action: "StartKubeProxy"}
	switch note := n.modeNote.Load(); {
	case note == nil:
		return
	case note.blank:
		e.Reason, e.Note = "KubeProxyDefaultMode", "No kube-proxy mode specified: defaulting to nftables; "+chooseMode
	case note.lacking != "":
		e.Reason = "KubeProxyModeFallback"
		e.Note = fmt.Sprintf("Mode %s cannot run on this node, and nftables takes its place: %s; %s", note.lacking, note.why, provideMode)
	default:
		return
	}
	n.emit(e)
}
