package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/cmd/leasefence/internal/process"
	"github.com/leasefence/leasefence/internal/etcd"
	locks "github.com/leasefence/leasefence/internal/queue"
)

// etcdFlags are etcdctl's flags for the connection to etcd, and --password-file.
type etcdFlags struct {
	endpoints                   []string
	dialTimeout, commandTimeout time.Duration
	keepAlive, keepAliveTimeout time.Duration
	user, password, file        string
	secure                      clientv3.SecureConfig
	names                       []string // names of the flags
	refused                     error    // a variable that is not supported is set, and no flag takes its place
}

func (e *etcdFlags) register(to *pflag.FlagSet) {
	flags := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	flags.StringSliceVar(&e.endpoints, "endpoints", []string{"127.0.0.1:2379"}, "addresses of etcd; best give all members")
	flags.DurationVar(&e.dialTimeout, "dial-timeout", 2*time.Second, "longest wait for a connection")
	flags.DurationVar(&e.commandTimeout, "command-timeout", 5*time.Second, "timeout of commands that do not wait for a lock")
	flags.DurationVar(&e.keepAlive, "keepalive-time", 2*time.Second, "time between probes of a connection")
	flags.DurationVar(&e.keepAliveTimeout, "keepalive-timeout", 6*time.Second, "longest wait for the answer to a probe")
	flags.BoolVar(&e.secure.InsecureTransport, "insecure-transport", true, "no TLS unless another flag turns it on")
	flags.BoolVar(&e.secure.InsecureSkipVerify, "insecure-skip-tls-verify", false, "do not check etcd's certificate: for tests only")
	flags.StringVar(&e.secure.Cacert, "cacert", "", "file with the CA of etcd's certificate; turns TLS on")
	flags.StringVar(&e.secure.Cert, "cert", "", "file with this client's certificate; turns TLS on")
	flags.StringVar(&e.secure.Key, "key", "", "file with the certificate's key")
	flags.StringVar(&e.user, "user", "", "etcd's user, as name or name:password; asks for the password on a terminal")
	flags.StringVar(&e.password, "password", "", "the user's password; better use $ETCDCTL_PASSWORD or --password-file")
	flags.StringVar(&e.file, "password-file", "", "file with the user's password")
	flags.VisitAll(func(f *pflag.Flag) { e.names = append(e.names, f.Name) })
	to.AddFlagSet(flags)
}

// readEnv sets flags that are not on the command line from the environment. If a flag gives a password, readEnv ignores
// passwords in the environment.
func (e *etcdFlags) readEnv(flags *pflag.FlagSet) error {
	given := e.passwords() > 0
	for _, name := range e.names {
		variable := "ETCDCTL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		text := os.Getenv(variable)
		switch {
		case text == "", flags.Changed(name), given && strings.HasPrefix(name, "password"):
			continue
		case given && name == "user":
			text, _, _ = strings.Cut(text, ":")
		}
		if err := flags.Set(name, text); err != nil {
			return usageError("$%s: %w", variable, err)
		}
	}
	switch {
	case !flags.Changed("endpoints") && os.Getenv("ETCDCTL_DISCOVERY_SRV") != "":
		e.refused = usageError("$ETCDCTL_DISCOVERY_SRV is not supported: unset it, or give --endpoints")
	case e.user == "" && os.Getenv("ETCDCTL_AUTH_JWT_TOKEN") != "":
		e.refused = usageError("$ETCDCTL_AUTH_JWT_TOKEN is not supported: unset it, or give --user")
	}
	return nil
}

// passwords counts the settings that give a password.
func (e *etcdFlags) passwords() (n int) {
	for _, given := range []bool{e.password != "", e.file != "", strings.Contains(e.user, ":")} {
		if given {
			n++
		}
	}
	return n
}

// config is the configuration of the client. etcd's client reads the certificate files again for each connection, so they
// can be replaced.
func (e *etcdFlags) config() (clientv3.Config, error) {
	switch {
	case e.dialTimeout <= 0:
		return clientv3.Config{}, usageError("--dial-timeout is %v, want more than 0s", e.dialTimeout)
	case e.commandTimeout <= 0:
		return clientv3.Config{}, usageError("--command-timeout is %v, want more than 0s", e.commandTimeout)
	case e.refused != nil:
		return clientv3.Config{}, e.refused
	case len(e.endpoints) == 0, slices.Contains(e.endpoints, ""):
		return clientv3.Config{}, usageError("--endpoints is empty, or has an empty address")
	case (e.secure.Cert == "") != (e.secure.Key == ""):
		return clientv3.Config{}, usageError("--cert and --key: one is empty, want both or none")
	}
	auth, err := e.auth()
	if err != nil {
		return clientv3.Config{}, err
	}
	config, err := clientv3.NewClientConfig(&clientv3.ConfigSpec{
		Endpoints: e.endpoints, DialTimeout: e.dialTimeout, KeepAliveTime: e.keepAlive, KeepAliveTimeout: e.keepAliveTimeout,
		Secure: &e.secure, Auth: &auth,
	}, zap.NewNop())
	if err != nil {
		return clientv3.Config{}, usageError("--cacert, --cert and --key: %w", err)
	}
	config.Logger = zap.NewNop()
	return *config, nil
}

// auth returns user and password. No error contains the password.
func (e *etcdFlags) auth() (clientv3.AuthConfig, error) {
	name, password, given := strings.Cut(e.user, ":")
	switch {
	case e.user == "" && e.file != "":
		return clientv3.AuthConfig{}, usageError("--password-file without --user")
	case e.user == "":
		return clientv3.AuthConfig{}, nil
	case e.passwords() > 1:
		return clientv3.AuthConfig{}, usageError("--user name:password, --password and --password-file: want one password")
	case given:
	case e.password != "":
		password = e.password
	case e.file != "":
		text, err := os.ReadFile(e.file)
		if err != nil {
			return clientv3.AuthConfig{}, usageError("--password-file: %w", err)
		}
		password = strings.TrimRight(string(text), "\r\n")
	default:
		var err error
		if password, err = process.ReadPassword(); err != nil { // nothing has been sent yet
			return clientv3.AuthConfig{}, usageError("--user without a password: %w", err)
		}
	}
	if name == "" || password == "" { // etcd's client would not log in, and say nothing
		return clientv3.AuthConfig{}, usageError("--user: the name or the password is empty")
	}
	return clientv3.AuthConfig{Username: name, Password: password}, nil
}

// connect makes a client. With a user, etcd's client authenticates before it returns: until ctx ends, or for
// --dial-timeout or patience, whichever is longer.
func (a *app) connect(ctx context.Context, patience time.Duration) (*clientv3.Client, error) {
	config, err := a.etcd.config()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	config.Context = life
	config.DialTimeout = max(config.DialTimeout, patience)
	client, err := clientv3.New(config)
	if err != nil {
		end()
		if errors.Is(err, context.DeadlineExceeded) { // etcd's client does not name the endpoints
			return nil, silent(config.DialTimeout, config.Endpoints)
		}
		return nil, fmt.Errorf("etcd at %q: %w", config.Endpoints, err)
	}
	return client, nil
}

// ask calls f with a client and a context that ends after --command-timeout.
func (a *app) ask(f func(ctx context.Context, client *clientv3.Client) error) error {
	return a.use(func(client *clientv3.Client) error {
		ctx, cancel := a.bounded(context.Background())
		defer cancel()
		return caused(ctx, client, f(ctx, client))
	})
}

// caused returns the cause of ctx for the error of a request that ctx has ended, and why there is no connection: etcd's
// client does not name the endpoints, nor a certificate that is refused.
func caused(ctx context.Context, client *clientv3.Client, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return etcd.Of(client).Ended(ctx, cmp.Or(context.Cause(ctx), err))
	}
	return err
}

// use calls f with a client, and closes the client afterwards.
func (a *app) use(f func(client *clientv3.Client) error) error {
	client, err := a.connect(context.Background(), 0)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = client.Close() }()
	return failed(f(client))
}

// reach reports soon if etcd cannot be reached, or does not let this user read the keys of a name. What follows waits
// without a bound.
func (a *app) reach(ctx context.Context, client *clientv3.Client, name string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	_, err := client.Get(ctx, name+"/", clientv3.WithCountOnly())
	return caused(ctx, client, err)
}

// bounded returns a context that ends after --command-timeout. Its cause then is that etcd has not answered.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("%w, or not in full (--command-timeout)", silent(a.etcd.commandTimeout, a.etcd.endpoints))
	return context.WithTimeoutCause(ctx, a.etcd.commandTimeout, cause)
}

func silent(d time.Duration, endpoints []string) error {
	return fmt.Errorf("etcd at %q has not answered for %v", endpoints, d)
}

// prefixWanted adds to a denied permission what the user can do about it.
func prefixWanted(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return fmt.Errorf("%w: give a PREFIX that this user may read", err)
	}
	return err
}

// keysAtATime is the number of keys that one request reads.
const keysAtATime = 2000

// scan reads the names of all keys that begin with prefix, page by page. All pages are of revision rev; if that is 0, each
// is of its own time, so that etcd may compact its history in between. It ends early if see returns false.
func scan(ctx context.Context, client *clientv3.Client, prefix string, rev int64, see func(*mvccpb.KeyValue) bool) error {
	key, end := cmp.Or(prefix, "\x00"), clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(keysAtATime), clientv3.WithRev(rev))
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			if !see(kv) {
				return nil
			}
		}
		if !resp.More {
			return nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// smallLease is smaller than every contender's lease, as in lease.List: a smaller number at the end of a key is data.
const smallLease = 1 << 32

// contends reports whether a key has the form of a contender's key, and the lease in its name. The name alone does not
// show whether the key is attached to that lease.
func contends(kv *mvccpb.KeyValue) (clientv3.LeaseID, bool) {
	form, ok := locks.FormOf(kv.Key)
	return form.Lease, ok && uint64(form.Lease) >= smallLease
}
