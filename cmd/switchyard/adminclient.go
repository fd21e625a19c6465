package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/config"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/explain"
)

// adminSocket is the flag --socket: where a running process serves the admin API.
type adminSocket struct{ address string }

// defaultSocket is a variable for tests, which must not ask the process of this machine.
var defaultSocket = config.DefaultAdminAddress

func (s *adminSocket) register(f *pflag.FlagSet) {
	f.StringVar(&s.address, "socket", defaultSocket, "the admin API of a running process (its --admin-bind-address)")
}

// path returns the path of the socket.
func (s *adminSocket) path() string { return strings.TrimPrefix(s.address, "unix://") }

// check finds a value that is no path.
func (s *adminSocket) check() error {
	if !filepath.IsAbs(s.path()) {
		return fmt.Errorf("--socket: %q is not an absolute path such as %s", s.address, strings.TrimPrefix(config.DefaultAdminAddress, "unix://"))
	}
	return nil
}

// exists reports whether there is a socket.
func (s *adminSocket) exists() bool {
	info, err := os.Stat(s.path())
	return err == nil && info.Mode().Type() == fs.ModeSocket
}

// adminClient asks a running process.
type adminClient struct {
	adminv1.AdminClient
	path string
	conn *grpc.ClientConn
}

func (s *adminSocket) dial() (*adminClient, error) {
	conn, err := grpc.NewClient("unix://"+s.path(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("--socket: %w", err)
	}
	return &adminClient{adminv1.NewAdminClient(conn), s.path(), conn}, nil
}

func (c *adminClient) Close() { _ = c.conn.Close() }

// failed returns an error of a call as a person needs it.
func (c *adminClient) failed(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unavailable:
		if _, err := os.Stat(c.path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no process serves the admin API at %s: there is no such socket; start 'switchyard proxy', 'run' or 'serve', or name the socket of one with --socket", c.path)
		}
		return fmt.Errorf("no process answers at %s: %s; name the socket of a running one with --socket, and ask as root", c.path, s.Message())
	case codes.Canceled:
		return context.Canceled
	}
	return errors.New(s.Message())
}

// list calls take for each row of a selection, limit of them at most if it is not 0, and reports whether there are more.
func (c *adminClient) list(ctx context.Context, selection *adminv1.Selection, limit int, take func(*adminv1.Row) error) (more bool, err error) {
	stream, err := c.List(ctx, &adminv1.ListRequest{Selection: selection, Limit: uint32(limit)})
	if err != nil {
		return false, c.failed(err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return more, nil
		}
		if err != nil {
			return false, c.failed(err)
		}
		for _, row := range part.GetRows() {
			if err := take(row); err != nil {
				return false, err
			}
		}
		more = part.GetMore()
	}
}

// maxKeys is how many rows are read for their names only, in completions and hints.
const maxKeys = 1000

// keys returns the keys of rows, maxKeys of them at most.
func (c *adminClient) keys(ctx context.Context, selection *adminv1.Selection) (keys []string, err error) {
	_, err = c.list(ctx, selection, maxKeys, func(m *adminv1.Row) error {
		keys = append(keys, m.GetKey())
		return nil
	})
	return keys, err
}

// ask asks why a connection goes where it goes.
func (c *adminClient) ask(ctx context.Context, from, to string) ([]*explain.Answer, error) {
	m, err := c.Explain(ctx, &adminv1.ExplainRequest{From: from, To: to})
	if err != nil {
		return nil, c.failed(err)
	}
	var answers []*explain.Answer
	for _, text := range m.GetAnswers() {
		var a explain.Answer
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return nil, fmt.Errorf("the answer of %s is of another version: %w", c.path, err)
		}
		answers = append(answers, &a)
	}
	return answers, nil
}
