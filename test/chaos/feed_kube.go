//go:build linux

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/switchyard-net/switchyard/test/topology"
)

// apiAddress is where the API server listens, inside the node.
const apiAddress = "127.0.0.1:8001"

// resources are those of the API server, with the version and kind of their objects.
var resources = map[string][2]string{
	"namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "services": {"v1", "Service"},
	"servicecidrs":   {"networking.k8s.io/v1", "ServiceCIDR"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
}

// kubeFeed is an API server in miniature: it lists and watches, and has objects that change.
type kubeFeed struct {
	dir  string
	host *topology.Host
	// fields are those of the proxy's configuration file.
	fields map[string]string

	mu      sync.Mutex
	version int
	// oldest is the version before which the server has forgotten what changed.
	oldest  int
	objects map[string][]stored // by resource
	changed chan struct{}       // closed and replaced when something above changes
	server  *http.Server        // nil while it is away
}

// stored is an object as it was stored last.
type stored struct {
	name    string
	version int
	text    []byte
	isNew   bool // this version is the first one
}

// noNodeSetup leaves the settings of the kernel alone.
const noNodeSetup = "{oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}"

func newKubeFeed(dir string, host *topology.Host, d *dataplane) (*kubeFeed, error) {
	f := &kubeFeed{dir: dir, host: host, version: 1, objects: map[string][]stored{}, changed: make(chan struct{})}
	f.fields = map[string]string{
		"hostnameOverride": host.Name, "configHardFail": "false", "clientConnection": "{contentType: application/json}",
		"detectLocal": "{clusterCIDRs: [10.244.0.0/16, \"fd00:10:244::/48\"]}",
		"linux":       noNodeSetup,
	}
	maps.Copy(f.fields, d.fields)
	return f, errors.Join(os.MkdirAll(filepath.Join(dir, "config"), 0o755), f.writeConfig(), f.listen())
}

func (f *kubeFeed) configPath() string { return filepath.Join(f.dir, "config", "config.yaml") }

func (f *kubeFeed) config() []byte { return configOf(f.fields) }

// configOf returns a configuration file.
func configOf(fields map[string]string) []byte {
	var text strings.Builder
	text.WriteString("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n")
	for name, value := range fields {
		text.WriteString(name + ": " + value + "\n")
	}
	return []byte(text.String())
}

// writeConfig replaces the configuration file.
func (f *kubeFeed) writeConfig() error {
	if err := os.WriteFile(f.configPath()+"~", f.config(), 0o600); err != nil {
		return err
	}
	return os.Rename(f.configPath()+"~", f.configPath())
}

func (f *kubeFeed) args() []string {
	return []string{"proxy", "--config", f.configPath(), "--master", "http://" + apiAddress}
}

// listen lets the server accept connections.
func (f *kubeFeed) listen() error {
	var l net.Listener
	err := f.host.Do(func() (err error) { l, err = net.Listen("tcp", apiAddress); return err })
	if err != nil {
		return err
	}
	server := &http.Server{Handler: f}
	f.server = server
	go func() { _ = server.Serve(l) }()
	return nil
}

// leave takes the server away.
func (f *kubeFeed) leave() error {
	if f.server == nil {
		return nil
	}
	err := f.server.Close()
	f.server = nil
	return err
}

// back brings it back, after so long that it does not remember what has changed.
func (f *kubeFeed) back() error {
	f.mu.Lock()
	f.version++
	f.oldest = f.version
	f.mu.Unlock()
	return f.listen()
}

func (f *kubeFeed) close() error { return f.leave() }

func (f *kubeFeed) put(changed []Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range changed {
		resource := ""
		for name, kind := range resources {
			if kind[1] == o.GetObjectKind().GroupVersionKind().Kind {
				resource = name
			}
		}
		f.version++
		o := o.DeepCopyObject().(Object)
		o.SetResourceVersion(strconv.Itoa(f.version))
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		s := stored{name: o.GetName(), version: f.version, text: text, isNew: true}
		f.objects[resource] = slices.DeleteFunc(f.objects[resource], func(old stored) bool {
			if old.name == s.name {
				s.isNew = false
			}
			return old.name == s.name
		})
		f.objects[resource] = append(f.objects[resource], s) // so they are in the order of their versions
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// remove removes objects, by resource and name, while the server is away: watchers get no event.
func (f *kubeFeed) remove(resource, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.objects[resource] = slices.DeleteFunc(f.objects[resource], func(s stored) bool { return s.name == name })
}

// since returns what is newer than a version, the version now, and what is closed when there is more.
func (f *kubeFeed) since(resource string, after int) (list []stored, version int, more <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.objects[resource] {
		if s.version > after {
			list = append(list, s)
		}
	}
	return list, f.version, f.changed
}

// ServeHTTP answers lists and watches.
func (f *kubeFeed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	kind, known := resources[resource]
	w.Header().Set("Content-Type", "application/json")
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	name, byName := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	chosen := func(s stored) bool { return !byName || s.name == name }
	if !query.Has("watch") {
		list, version, _ := f.since(resource, 0)
		var items []string
		for _, s := range list {
			if chosen(s) {
				items = append(items, string(s.text))
			}
		}
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, kind[0], kind[1], version, strings.Join(items, ","))
		return
	}
	after, _ := strconv.Atoi(query.Get("resourceVersion"))
	if initial := query.Get("sendInitialEvents") == "true"; initial {
		list, version, _ := f.since(resource, 0)
		for _, s := range list {
			if chosen(s) {
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", s.text)
			}
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", kind[0], kind[1], version)
		after = version
	} else if f.forgotten(after) {
		fmt.Fprintln(w, `{"type":"ERROR","object":{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","code":410}}`)
		return
	}
	for {
		list, version, more := f.since(resource, after)
		for _, s := range list {
			verb := "MODIFIED"
			if s.isNew {
				verb = "ADDED"
			}
			if chosen(s) {
				fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", verb, s.text)
			}
		}
		after = version
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *kubeFeed) forgotten(version int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return version < f.oldest
}
