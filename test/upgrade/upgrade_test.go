package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/configfile"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

const root = "../.."

// releases are the directories of testdata with what is kept of releases.
func releases(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/v*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no releases in testdata: %v", err)
	}
	return dirs
}

// TestLast: the last release has its testdata, and if it has a tag, the tag is on its commit.
func TestLast(t *testing.T) {
	last, err := Last(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, last.Testdata())); err != nil {
		t.Errorf("%v: write it with: make published", err)
	}
	cmd := exec.Command("git", "rev-parse", "--verify", "--quiet", "refs/tags/"+last.Version+"^{commit}")
	if out, err := cmd.Output(); err == nil && strings.TrimSpace(string(out)) != last.Commit {
		t.Errorf("%s: %s is %s, but its tag is commit %s", List, last.Version, last.Commit, out)
	}
}

// TestMissingHistory: in a clone without the commit of a release, the error has the remedy.
func TestMissingHistory(t *testing.T) {
	dir := t.TempDir()
	if err := command(t.Context(), dir, "git", "init", "-q"); err != nil {
		t.Fatal(err)
	}
	r := &Release{"v0.1.0", strings.Repeat("0", 40)}
	if _, err := r.Source(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("got %v", err)
	}
}

// TestKeptProtocols: the protocols in testdata are from the release's commit, if this clone has it.
func TestKeptProtocols(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a tool")
	}
	last, err := Last(root)
	if err != nil {
		t.Fatal(err)
	}
	source, err := last.Source(t.Context(), root)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := recordProtocols(t.Context(), root, source, dir); err != nil {
		t.Fatal(err)
	}
	for name := range Protocols {
		want, err := os.ReadFile(filepath.Join(dir, name+".binpb"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, last.Testdata(), name+".binpb"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %s.binpb is not of commit %s: write it with: make published", last.Testdata(), name, last.Commit)
		}
	}
}

// recorded reads the answers of a release, as bytes and decoded.
func recorded(t *testing.T, dir string, s *stream) (messages [][]byte, answers []proto.Message) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, s.name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	if messages, err = unpack(data); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		answer, err := s.decode(m)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	return messages, answers
}

// TestWire: the bytes of a release mean the same as at the time of the release.
func TestWire(t *testing.T) {
	for _, dir := range releases(t) {
		for i := range streams {
			s := &streams[i]
			var got bytes.Buffer
			_, answers := recorded(t, dir, s)
			for _, answer := range answers {
				text, err := describe(answer)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(text)
			}
			want, err := os.ReadFile(filepath.Join(dir, s.name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s: the answers of %s are read differently (-want +got):\n%s", dir, s.method, diff)
			}
		}
	}
}

// replay serves the recorded answers of a release, until the test ends. It returns the target for clients.
func replay(t *testing.T, dir string) string {
	t.Helper()
	// Not t.TempDir(): with the test's name, the path may be too long for a socket.
	sockets, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	path := filepath.Join(sockets, "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{updates: map[string][][][]byte{}}
	for i := range streams {
		s := &streams[i]
		messages, answers := recorded(t, dir, s)
		var update [][]byte
		for j, m := range messages {
			if update = append(update, m); isLast(answers[j]) {
				p.updates[s.method], update = append(p.updates[s.method], update), nil
			}
		}
		if n := len(p.updates[s.method]); n != 2 || update != nil {
			t.Fatalf("%s: %d updates of %s, want 2", dir, n, s.method)
		}
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(p.play))
	var done sync.WaitGroup
	done.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Stop(); done.Wait() })
	return "unix://" + path
}

// player answers calls.
type player struct {
	// updates are the updates of each method, each in its parts.
	updates map[string][][][]byte

	mu    sync.Mutex // guards polls
	polls int        // how many calls of NextNames there were
}

func (p *player) play(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	updates := p.updates[method]
	if updates == nil {
		return status.Error(codes.Unimplemented, method)
	}
	poll := method == localnetv1.Endpoints_NextNames_FullMethodName
	if poll {
		p.mu.Lock()
		updates = updates[min(p.polls, len(updates)):]
		p.polls++
		p.mu.Unlock()
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for _, parts := range updates {
		for ready := false; !ready; {
			var data []byte
			if err := stream.RecvMsg(&data); err != nil {
				return err
			}
			request := new(localnetv1.WatchRequest)
			ready = method != localnetv1.Endpoints_Watch_FullMethodName || proto.Unmarshal(data, request) == nil && request.Ready
		}
		for _, part := range parts {
			if err := stream.SendMsg(part); err != nil {
				return err
			}
		}
		if poll {
			return nil
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func eachRelease(t *testing.T, run func(ctx context.Context, t *testing.T, dir, target string)) {
	for _, dir := range releases(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			run(ctx, t, dir, replay(t, dir))
		})
	}
}

// TestClientReadsReleases: today's client hands out all records that the server of a release sends.
func TestClientReadsReleases(t *testing.T) {
	eachRelease(t, func(ctx context.Context, t *testing.T, dir, target string) {
		options := client.Options{Target: target, Node: node, OnError: func(err error) { t.Error(err) }}
		_, answers := recorded(t, dir, &streams[0])
		var want, got []proto.Message
		for _, a := range answers {
			for _, s := range a.(*localnetv1.WatchResponse).Changed {
				want = append(want, s)
			}
		}
		w, err := client.NewWatcher(options)
		if err != nil {
			t.Fatal(err)
		}
		updates := 0
		for u := range w.Updates(ctx) {
			for _, s := range u.Changed {
				if err := client.Check(s); err != nil {
					t.Errorf("%v: %v", client.NameOf(s), err)
				}
				got = append(got, s)
			}
			if updates++; updates == 2 {
				if u.Full || len(u.Removed) != 1 || u.Node.GetName() != node {
					t.Errorf("the second update is %+v", u)
				}
				break
			}
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}

		_, answers = recorded(t, dir, &streams[1])
		want, got = nil, nil
		for _, a := range answers {
			for _, s := range a.(*localnetv1.NextNamesResponse).Changed {
				want = append(want, s)
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		updates = 0
		options.OnError = nil // the recording ends
		err = client.RunNames(ctx, options, func(u *client.NamesUpdate) {
			for _, s := range u.Changed {
				got = append(got, s)
			}
			if updates++; updates == 2 {
				cancel()
			}
		})
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%v; names (-want +got):\n%s", err, diff)
		}
	})
}

// TestDataplaneReadsReleases: today's dataplanes get states from the server of a release that say all that its records say.
func TestDataplaneReadsReleases(t *testing.T) {
	eachRelease(t, func(ctx context.Context, t *testing.T, dir, target string) {
		want := map[state.ServiceName]*localnetv1.ServiceEndpoints{}
		_, answers := recorded(t, dir, &streams[0])
		var last *localnetv1.Node
		for _, a := range answers {
			r := a.(*localnetv1.WatchResponse)
			for _, s := range r.Changed {
				want[state.ServiceName{Namespace: s.Namespace, Name: s.Name}] = s
			}
			for _, n := range r.Removed {
				delete(want, protoconv.ParseServiceName(n))
			}
			if r.Node != nil {
				last = r.Node
			}
		}
		var log bytes.Buffer
		f, err := apifollower.New(apifollower.Options{Client: client.Options{Target: target, Node: node}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		running, cancel := context.WithCancel(ctx)
		var done sync.WaitGroup
		done.Go(func() { _ = f.Run(running) })
		got := map[state.ServiceName]*localnetv1.ServiceEndpoints{}
		var at *localnetv1.Node
		for after, diff := state.Revision(0), "nothing"; diff != ""; {
			u, err := f.Next(ctx, after)
			if err != nil {
				t.Errorf("%v; the states differ (-want +got):\n%s", err, diff)
				break
			}
			if u.Full {
				clear(got)
			}
			for _, s := range u.Changed {
				got[s.Name] = protoconv.Service(s)
			}
			for _, n := range u.Removed {
				delete(got, n)
			}
			if u.Node != nil {
				at = protoconv.Node(u.Node)
			}
			after, diff = u.Revision, cmp.Diff(want, got, protocmp.Transform())+cmp.Diff(last, at, protocmp.Transform())
		}
		cancel()
		done.Wait()
		if log.Len() > 0 {
			t.Errorf("the follower says: %s", &log)
		}
	})
}

// objects is a sink that keeps the messages of objects.
type objects struct {
	mu      sync.Mutex // guards all below
	of      map[model.Ref]*clusterv1.Object
	updates int
	enough  context.CancelFunc
}

func (o *objects) Update(set []model.Object, deleted []model.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, obj := range set {
		o.of[obj.Ref()] = protoconv.Object(obj)
	}
	for _, ref := range deleted {
		delete(o.of, ref)
	}
	if o.updates++; o.updates == 2 {
		o.enough()
	}
}

func (o *objects) Complete() {}

// TestRelayReadsReleases: today's relays get all objects from the relay of a release.
func TestRelayReadsReleases(t *testing.T) {
	eachRelease(t, func(ctx context.Context, t *testing.T, dir, target string) {
		want := map[model.Ref]*clusterv1.Object{}
		_, answers := recorded(t, dir, &streams[2])
		for _, a := range answers {
			r := a.(*clusterv1.FollowResponse)
			for _, m := range r.Set {
				obj, err := protoconv.ParseObject(m)
				if err != nil {
					t.Fatal(err)
				}
				want[obj.Ref()] = m
			}
			for _, m := range r.Deleted {
				ref, err := protoconv.ParseRef(m)
				if err != nil {
					t.Fatal(err)
				}
				delete(want, ref)
			}
		}
		var log bytes.Buffer
		source, err := relay.New(relay.Options{Targets: []string{target}, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		got := &objects{of: map[model.Ref]*clusterv1.Object{}, enough: cancel}
		if err := source.Run(ctx, got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got.of, protocmp.Transform()); diff != "" || got.updates != 2 {
			t.Errorf("objects after %d updates (-want +got):\n%s", got.updates, diff)
		}
		if log.Len() > 0 {
			t.Errorf("the relay says: %s", &log)
		}
	})
}

// TestConfigurationFilesOfReleases: today's programs read all files of a release, with the same values.
func TestConfigurationFilesOfReleases(t *testing.T) {
	for _, dir := range releases(t) {
		files, err := filepath.Glob(filepath.Join(dir, "config", "*.yaml"))
		if err != nil || len(files) < 8 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, _, err := configfile.Load(data, configfile.Options{Name: file})
			if err != nil {
				t.Errorf("%v", err)
				continue
			}
			latest, err := configfile.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if data, err = os.ReadFile(filepath.Join(dir, "config", "meaning", filepath.Base(file))); err != nil {
				t.Fatal(err)
			}
			var want, got map[string]any
			if err := yaml.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(latest, &got); err != nil {
				t.Fatal(err)
			}
			for _, path := range lost("", want, got) {
				t.Errorf("%s: %s is not what it was at the time of the release", file, path)
			}
		}
	}
}

// lost lists the paths of values that are missing or different.
func lost(path string, want, got any) (list []string) {
	fields, isMap := want.(map[string]any)
	now, isStill := got.(map[string]any)
	if !isMap || !isStill {
		if cmp.Equal(want, got) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %v, now %v", path, want, got)}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		list = append(list, lost(strings.TrimPrefix(path+"."+name, "."), fields[name], now[name])...)
	}
	return list
}

// TestPlantedBreakOfAPI: apidiff reports a change of a function's type in a copy of the module client, and nothing else.
func TestPlantedBreakOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("loads a module")
	}
	apidiff, err := tool(t.Context(), root, "apidiff")
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(root, "client"))); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(copied, "update.go"), "func NameOf(s *localnetv1.ServiceEndpoints) ", "func NameOf(s *localnetv1.ServiceEndpoints, _ ...int) ")
	list, err := moduleChanges(t.Context(), apidiff, filepath.Join(root, "client"), copied, module+"/client")
	if err != nil {
		t.Fatal(err)
	}
	if list = only(nil, "client", list); len(list) != 1 || !strings.HasPrefix(list[0], "client.NameOf: changed from ") {
		t.Fatalf("with the break: %q", list)
	}
	if wrong := judge(list, list[0], &Release{Version: "v0.1.0"}); len(wrong) != 1 || !strings.Contains(wrong[0], "client only adds") {
		t.Errorf("an accepted change of the client: %q", wrong)
	}
}

// edit replaces a text that a file has once.
func edit(t *testing.T, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), from); n != 1 {
		t.Fatalf("%s has %q %d times: adapt the test to the code", file, from, n)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPromises: only packages with a promise count, and changes that are accepted do not.
func TestPromises(t *testing.T) {
	stability, err := os.ReadFile(filepath.Join(root, "docs", "stability.md"))
	if err != nil {
		t.Fatal(err)
	}
	promised, err := promises(string(stability))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"client", "state", "backend/userspace", "config/v1alpha2", "kernel/conntrack"} {
		if !slices.Contains(promised, name) {
			t.Errorf("%s has no promise: %q", name, promised)
		}
	}
	got := only(promised, ".", []string{
		"./state.FamilyOf: removed", "./test/chaos.Run: removed", "package " + module + "/model: removed", "package " + module + "/lab: removed",
		"./config/v1alpha2.From: changed from a to b",
	})
	want := []string{"state.FamilyOf: removed", "model: removed", "config/v1alpha2.From: changed from a to b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := only(nil, "client", []string{"NameOf: removed", "./localnet/v1.Port: removed"}); !slices.Equal(got, []string{"client.NameOf: removed", "client/localnet/v1.Port: removed"}) {
		t.Errorf("of the client: %q", got)
	}
	wrong := judge(want, "# a comment\nstate.FamilyOf: removed\nmodel: removed\nstate.Gone: removed\n", &Release{Version: "v0.1.0"})
	if len(wrong) != 2 || !strings.Contains(wrong[0], "state.Gone") || wrong[1] != "incompatible with v0.1.0: config/v1alpha2.From: changed from a to b" {
		t.Errorf("%q", wrong)
	}
}

// TestPlantedBreakOfProtocols: buf, as make protocols calls it, reports a field with another number, and nothing without it.
func TestPlantedBreakOfProtocols(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a tool")
	}
	last, err := Last(root)
	if err != nil {
		t.Fatal(err)
	}
	buf, err := tool(t.Context(), root, "buf")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, tree := range []string{"client/proto", "internal/proto", "internal/admin/proto"} {
		if err := os.CopyFS(filepath.Join(dir, tree), os.DirFS(filepath.Join(root, tree))); err != nil {
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile(filepath.Join(root, "buf.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "buf.yaml"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	breaking := func(name string) string {
		t.Helper()
		image, err := filepath.Abs(filepath.Join(root, last.Testdata(), name+".binpb"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(buf, "breaking", Protocols[name], "--against", image)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if (err == nil) != (len(out) == 0) {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	for name, c := range map[string]struct{ file, from, to, want string }{
		"localnet": {"client/proto/switchyard/localnet/v1/localnet.proto", "uint32 affinity_seconds = 8;", "uint32 affinity_seconds = 18;", "affinity_seconds"},
		"cluster":  {"internal/proto/switchyard/cluster/v1/cluster.proto", "bool internal_local = 11;", "string internal_local = 11;", "internal_local"},
	} {
		if out := breaking(name); out != "" {
			t.Errorf("%s without a change: %s", name, out)
		}
		edit(t, filepath.Join(dir, c.file), c.from, c.to)
		if out := breaking(name); !strings.Contains(out, c.want) {
			t.Errorf("%s with the break: %q", name, out)
		}
	}
}
