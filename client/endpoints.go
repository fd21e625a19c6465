package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// EndpointsClient is the simplest client: each [EndpointsClient.Next] returns the whole state. A [Watcher] returns only
// changes.
//
// Its methods may be called by several goroutines, but Next by one at a time. The fields must not change while Next
// runs.
type EndpointsClient struct {
	// Target is where the server is, as in [Options]. Default: [DefaultTarget].
	Target string
	// InstanceID and Rev are the state that Next has returned last. Set them at first to resume a watch.
	InstanceID, Rev uint64
	// Accepts are the features that the caller knows, as in [Options].
	Accepts []localnetv1.Feature
	// ErrorDelay is the pause before Next retries after an error. Default: 1 s.
	ErrorDelay time.Duration
	// Node is the node whose state is wanted. Default: the server's node.
	Node string
	// TLS is required for a server that is not on this host, as in [Options].
	TLS *tls.Config
	// SocketUsers are users whose processes may serve a unix socket, as in [Options].
	SocketUsers []string
	// Logger gets the errors after which Next retries. Default: nothing is logged.
	Logger *slog.Logger
	// DialOptions are as in [Options].
	DialOptions []grpc.DialOption

	files  TLSFiles // from flags; used if TLS is nil
	users  string   // from flags; used if SocketUsers is empty
	logged string   // the last error that was logged, empty after a success
	size   int      // of the last state

	mu     sync.Mutex
	ctx    context.Context // until Cancel; nil before it is needed
	cancel context.CancelFunc
	conn   *grpc.ClientConn // nil if there is none
	// certificates are the certificates in files, nil until they could be read
	certificates *Certificates
}

// FlagSet is where flags can be defined: a *flag.FlagSet or a *pflag.FlagSet.
type FlagSet interface {
	StringVar(p *string, name, value, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
}

// New returns a client whose fields are bound to flags, for command line tools. Others write &EndpointsClient{...}.
func New(flags FlagSet) *EndpointsClient {
	epc := &EndpointsClient{}
	epc.DefaultFlags(flags)
	return epc
}

// DefaultFlags binds the fields of the client to the standard flags: target, node, instance-id, rev, error-delay, socket-users, tls-ca,
// tls-cert, tls-key and tls-server-name. The current value of a field is the default of its flag.
func (epc *EndpointsClient) DefaultFlags(flags FlagSet) {
	flags.StringVar(&epc.Target, "target", cmp.Or(epc.Target, DefaultTarget), "the server: unix:///path, tcp://host:port, host:port or a target of gRPC")
	flags.Uint64Var(&epc.InstanceID, "instance-id", epc.InstanceID, "instance ID of the state to resume from")
	flags.Uint64Var(&epc.Rev, "rev", epc.Rev, "revision of the state to resume from")
	flags.DurationVar(&epc.ErrorDelay, "error-delay", cmp.Or(epc.ErrorDelay, time.Second), "pause before trying again after an error")
	flags.StringVar(&epc.Node, "node", epc.Node, "node whose state is wanted (default: the one that the server is for)")
	flags.StringVar(&epc.users, "socket-users", "", "users, by name or number, separated by commas, whose processes may serve a unix socket, in addition to root and this process's user")
	flags.StringVar(&epc.files.CA, "tls-ca", "", "file with the certificate authorities that may vouch for the server; any --tls flag turns TLS on")
	flags.StringVar(&epc.files.Cert, "tls-cert", "", "file with the client's certificate")
	flags.StringVar(&epc.files.Key, "tls-key", "", "file with the key of the client's certificate")
	flags.StringVar(&epc.files.ServerName, "tls-server-name", "", "name in the server's certificate (default: the host in --target)")
}

// Next returns the services of the node when there is a state other than the one that InstanceID and Rev name. It never
// fails: after an error it waits for ErrorDelay and retries. The result is always the latest state, whole, ordered by
// namespace and name, and belongs to the caller. canceled reports whether the client was canceled; there are no items
// then.
func (epc *EndpointsClient) Next() (items []*localnetv1.ServiceEndpoints, canceled bool) {
	ctx := epc.context()
	for {
		began := time.Now()
		items, err := epc.fetch(ctx)
		if err == nil {
			epc.logged = ""
			return items, false
		}
		if ctx.Err() != nil {
			return nil, true
		}
		epc.disconnect()
		if err == errEmpty && time.Since(began) >= cmp.Or(epc.ErrorDelay, time.Second) {
			continue // The connection had lasted long enough.
		}
		if epc.Logger != nil && epc.logged != err.Error() {
			epc.logged = err.Error()
			epc.Logger.Warn("cannot get the state, trying again", "target", epc.Target, "error", err)
		}
		sleep(ctx, cmp.Or(epc.ErrorDelay, time.Second))
	}
}

// fetch makes one call.
func (epc *EndpointsClient) fetch(ctx context.Context) ([]*localnetv1.ServiceEndpoints, error) {
	conn, err := epc.connect(ctx)
	if err != nil {
		return nil, err
	}
	// A stream that is left before its end must not stay open.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := &localnetv1.NextFilter{InstanceId: epc.InstanceID, Rev: epc.Rev, Node: epc.Node, Accepts: epc.Accepts}
	stream, err := localnetv1.NewEndpointsClient(conn).Next(ctx, filter)
	if err != nil {
		return nil, err
	}
	// One item serves for all, because its fields point to new values each time.
	var item localnetv1.NextItem
	if err := stream.RecvMsg(&item); err != nil {
		return nil, unexpected(err)
	}
	if item.Next == nil {
		return nil, errors.New("broken answer: the first item has no filter for the next call")
	}
	next := item.Next
	items := make([]*localnetv1.ServiceEndpoints, 0, epc.size)
	size := 0
	for {
		if err := stream.RecvMsg(&item); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if item.Endpoints == nil {
			return nil, fmt.Errorf("broken answer: item %d has no service", len(items)+1)
		}
		if size += proto.Size(item.Endpoints) + partOverhead; size > maxUpdate {
			return nil, errTooLarge
		}
		items = append(items, item.Endpoints)
	}
	epc.InstanceID, epc.Rev, epc.size = next.InstanceId, next.Rev, len(items)
	return items, nil
}

var errEmpty = errors.New("the server has ended the call without an answer")

func unexpected(err error) error {
	if err == io.EOF {
		return errEmpty
	}
	return err
}

// context returns a context that lasts until Cancel.
func (epc *EndpointsClient) context() context.Context {
	epc.mu.Lock()
	defer epc.mu.Unlock()
	return epc.contextLocked()
}

func (epc *EndpointsClient) contextLocked() context.Context {
	if epc.ctx == nil {
		epc.ctx, epc.cancel = context.WithCancel(context.Background())
	}
	return epc.ctx
}

// connect returns the connection, or prepares one.
func (epc *EndpointsClient) connect(ctx context.Context) (*grpc.ClientConn, error) {
	epc.mu.Lock()
	defer epc.mu.Unlock()
	if epc.conn != nil || ctx.Err() != nil {
		return epc.conn, ctx.Err()
	}
	if epc.TLS == nil && epc.certificates == nil && epc.files != (TLSFiles{}) {
		var err error
		if epc.certificates, err = NewCertificates(epc.files, epc.Logger); err != nil {
			return nil, err
		}
	}
	users := epc.SocketUsers
	if len(users) == 0 && epc.users != "" {
		users = strings.Split(epc.users, ",")
	}
	o := Options{Target: epc.Target, TLS: epc.TLS, Certificates: epc.certificates, SocketUsers: users, DialOptions: epc.DialOptions}
	conn, err := Dial(o)
	epc.conn = conn
	return conn, err
}

// disconnect gives the connection up, if there is one.
func (epc *EndpointsClient) disconnect() {
	epc.mu.Lock()
	defer epc.mu.Unlock()
	if epc.conn != nil {
		epc.conn.Close()
		epc.conn = nil
	}
}

// Cancel ends the client: a running Next returns at once, and so does each further one.
func (epc *EndpointsClient) Cancel() {
	epc.mu.Lock()
	epc.contextLocked()
	epc.cancel()
	epc.mu.Unlock()
	epc.disconnect()
}

// CancelOn cancels the client on the first of the given signals. A second signal has its default effect.
func (epc *EndpointsClient) CancelOn(signals ...os.Signal) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, signals...)
	ctx := epc.context()
	go func() {
		defer signal.Stop(got)
		select {
		case <-got:
			epc.Cancel()
		case <-ctx.Done():
		}
	}()
}

// CancelOnSignals cancels the client on the signals that end programs: SIGINT and SIGTERM.
func (epc *EndpointsClient) CancelOnSignals() { epc.CancelOn(os.Interrupt, syscall.SIGTERM) }
