package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/client"
)

// Record writes the testdata of the last release: its protocols, its configuration files, and the answers of its server.
func Record(ctx context.Context, root string) error {
	last, program, err := LastProgram(ctx, root)
	if err != nil {
		return err
	}
	source, err := last.Source(ctx, root)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(filepath.Join(root, last.Testdata()))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "config", "meaning"), 0o755); err != nil {
		return err
	}
	inputs := filepath.Join(root, "test", "upgrade", "testdata", "inputs")
	return errors.Join(
		recordProtocols(ctx, root, source, to),
		recordConfigs(ctx, program, source, inputs, filepath.Join(to, "config")),
		recordStreams(ctx, program, inputs, to),
	)
}

// Protocols are the trees of published protocols, by the names of their files in testdata.
var Protocols = map[string]string{"localnet": "client/proto", "cluster": "internal/proto"}

func recordProtocols(ctx context.Context, root, source, to string) error {
	buf, err := tool(ctx, root, "buf")
	if err != nil {
		return err
	}
	for name, tree := range Protocols {
		if err := command(ctx, source, buf, "build", tree, "-o", filepath.Join(to, name+".binpb")); err != nil {
			return err
		}
	}
	return nil
}

// recordConfigs copies the files from the tests of the release, and has it write files in which every field has its default or another value.
// The release also converts each file to the latest version, which shows the values that it reads.
func recordConfigs(ctx context.Context, program, source, inputs, to string) error {
	files, err := filepath.Glob(filepath.Join(source, "internal", "configfile", "testdata", "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("the release has no configuration files in internal/configfile/testdata")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), data, 0o644); err != nil {
			return err
		}
	}
	for _, version := range []string{"v1alpha1", "v1alpha2"} {
		for name, args := range map[string][]string{
			"defaults": {"config", "defaults", "--version", version},
			"others":   {"config", "convert", filepath.Join(inputs, "others.yaml"), "--to", version},
		} {
			text, err := output(exec.CommandContext(ctx, program, args...))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, name+"."+version+".yaml"), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	if files, err = filepath.Glob(filepath.Join(to, "*.yaml")); err != nil {
		return err
	}
	for _, file := range files {
		if err := command(ctx, to, program, "config", "convert", filepath.Base(file), "-o", filepath.Join("meaning", filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// recordStreams starts a relay and writes its answers, as messages and as JSON: the whole state, and the changes to the next one.
func recordStreams(ctx context.Context, program, inputs, to string) (err error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	manifests, socket := filepath.Join(dir, "manifests"), "unix://"+filepath.Join(dir, "api.sock")
	replace := func(name string) error {
		text, err := os.ReadFile(filepath.Join(inputs, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, name), filepath.Join(manifests, "cluster.yaml"))
	}
	if err := os.Mkdir(manifests, 0o755); err != nil {
		return err
	}
	if err := replace("before.yaml"); err != nil {
		return err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "serve", "--nodes", "--names", "--source", manifests, "--listen", socket,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--admin-bind-address", "none")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if ended := cmd.Wait(); err == nil {
			err = ended
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log.String())
		}
	}()
	conn, err := client.Dial(client.Options{Target: socket})
	if err != nil {
		return err
	}
	defer conn.Close()
	calls := make([]call, len(streams))
	for i := range calls {
		calls[i] = call{stream: &streams[i], conn: conn}
	}
	for _, name := range []string{"", "after.yaml"} {
		if name != "" {
			if err := replace(name); err != nil {
				return err
			}
		}
		for i := range calls {
			if err := calls[i].update(ctx); err != nil {
				return fmt.Errorf("%s: %w", calls[i].method, err)
			}
		}
	}
	for i := range calls {
		c := &calls[i]
		if err := os.WriteFile(filepath.Join(to, c.name+".bin"), pack(c.messages), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, c.name+".json"), c.json.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// call is a stream that is recorded.
type call struct {
	*stream
	conn     *grpc.ClientConn
	open     grpc.ClientStream
	last     proto.Message
	messages [][]byte
	json     bytes.Buffer
}

// update asks for an update, and records its parts.
func (c *call) update(ctx context.Context) (err error) {
	if c.open == nil || c.poll {
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: !c.poll}
		if c.open, err = c.conn.NewStream(ctx, desc, c.method, grpc.ForceCodecV2(bytesCodec{}), grpc.WaitForReady(true)); err != nil {
			return err
		}
	}
	request, err := proto.Marshal(c.request(c.last))
	if err == nil {
		err = c.open.SendMsg(request)
	}
	if err == nil && c.poll {
		err = c.open.CloseSend()
	}
	for err == nil {
		var data, text []byte
		if err = c.open.RecvMsg(&data); err != nil {
			break
		}
		c.messages = append(c.messages, data)
		if c.last, err = c.decode(data); err != nil {
			break
		}
		text, err = describe(c.last)
		c.json.Write(text)
		if isLast(c.last) {
			break
		}
	}
	return err
}
