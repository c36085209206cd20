package k8slock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/logqueue"
	"github.com/leasefence/leasefence/internal/queue"
)

// root begins each key. No name of a lock or an election begins with "/", so the key is in no queue.
const root = "/k8slock/"

// mostShown is how many bytes of foreign text errors and log lines show.
const mostShown = 64

// Lock is a [resourcelock.Interface] for one election, kept in etcd. Use one Lock for each elector: two electors that
// share a Lock both lead. Otherwise it is safe for concurrent use. There is nothing to close: a tenure frees its
// resources when it ends, at its deadline at the latest. The Lock never closes the client.
type Lock struct {
	client   *clientv3.Client
	name     string
	key      string
	identity string
	era      uint16
	timeout  time.Duration
	stable   bool // Options.StableIdentity
	log      *slog.Logger

	turn     chan struct{} // of capacity 1: full while a call is under way, which owns the next five fields
	bounded  time.Duration // the bound of that call
	revision int64         // of the record as last read or written; 0: there is none, or it is not known
	ours     bool          // whether that record is the last tenure's
	read     bool          // whether it was read or written before
	earlier  int64         // the revision of the record that the first Get has found; 0: none

	mu      sync.Mutex // guards the fields below
	current *tenure    // the last one, live or not
	leading bool       // whether the elector says that it leads
}

var _ resourcelock.Interface = (*Lock)(nil)

// New returns a Lock for the election called name: 1 to 1,024 bytes of UTF-8 without NUL, with "/" only between parts.
// The record is in the key Options.Prefix + "/k8slock/" + name. New sends nothing; its errors name the field, the value
// and the legal range.
func New(client *clientv3.Client, name string, opts Options) (*Lock, error) {
	opts, err := opts.resolve(client, name)
	if err != nil {
		return nil, err
	}
	log, _ := logqueue.New(opts.Logger) // since the elector's loop calls RecordEvent, which must not block
	return &Lock{
		client:   client,
		name:     name,
		key:      opts.Prefix + root + name,
		identity: opts.Identity,
		era:      opts.Era,
		timeout:  opts.Timeout,
		stable:   opts.StableIdentity,
		log:      log,
		turn:     make(chan struct{}, 1),
	}, nil
}

// Identity returns the candidate's name in the record.
func (l *Lock) Identity() string { return l.identity }

// Describe returns the record's key in etcd.
func (l *Lock) Describe() string { return l.key }

// The events that client-go's elector records when it begins and stops leading.
const (
	becameLeader   = "became leader"
	stoppedLeading = "stopped leading"
)

// RecordEvent is called by the elector when it begins and stops leading. Between the two no other tenure follows a lost
// one: see Create. After "stopped leading" the tenure is over.
func (l *Lock) RecordEvent(event string) {
	if event == becameLeader || event == stoppedLeading {
		l.mu.Lock()
		l.leading = event == becameLeader
		l.mu.Unlock()
	}
	if event == stoppedLeading {
		l.stop()
	}
	l.log.Info(event, "lock", l.name, "identity", l.identity)
}

// Get returns the record and its stored form, which differs for every write. If there is no record,
// apierrors.IsNotFound is true of the error. If Get finds no record, or another process's record, during a tenure, the
// tenure has been lost and ends.
//
// If a record of another process has this Lock's identity, Get adds " (another process)" to the HolderIdentity:
// otherwise the elector would take it for its own. With [Options].StableIdentity, Get empties the HolderIdentity of a
// record that an earlier start left, so that the elector acquires it at once.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, done, err := l.begin(ctx, l.timeout)
	if err != nil {
		return nil, nil, fmt.Errorf("k8slock: read %q: %w", l.key, err)
	}
	defer done()

	var resp *clientv3.GetResponse
	err = l.try(ctx, func(a *etcd.Attempt) (err error) {
		resp, err = a.Get(l.key)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("k8slock: read %q: %w", l.key, err)
	}
	l.revision, l.ours = 0, false
	if !l.read && len(resp.Kvs) > 0 {
		l.earlier = resp.Kvs[0].ModRevision
	}
	l.read = true
	if len(resp.Kvs) == 0 {
		l.lose("the record is gone: the lease expired or was revoked, or the key was deleted")
		return nil, nil, l.notFound()
	}
	kv := resp.Kvs[0]
	record, err := parse(kv.Value)
	if err != nil {
		l.lose("the key was overwritten")
		return nil, nil, fmt.Errorf("k8slock: key %q holds no record of an election: %w", l.key, err)
	}

	l.revision = kv.ModRevision
	t := l.present()
	l.ours = t != nil && kv.Lease == int64(t.lease) && record.HolderIdentity == l.identity
	if l.ours {
		return record, kv.Value, nil
	}
	l.lose(fmt.Sprintf("the record is %q's", clip.To(record.HolderIdentity, mostShown)))
	switch {
	case record.HolderIdentity != l.identity:
	case l.stable && kv.ModRevision == l.earlier:
		// A stable identity belongs to one process at a time, so the process that wrote this record has ended.
		record.HolderIdentity = ""
	default:
		// Another process has this identity. Its record is not taken over, even if the option says that this cannot be:
		// the two would take the lead from each other at each try.
		record.HolderIdentity += " (another process)"
	}
	return record, kv.Value, nil
}

// parse reads a record. Anybody with write permission may have written it, so its size is bounded.
func parse(value []byte) (*resourcelock.LeaderElectionRecord, error) {
	if len(value) > maxRecord {
		return nil, fmt.Errorf("it has %d bytes, want at most %d", len(value), maxRecord)
	}
	record := new(resourcelock.LeaderElectionRecord)
	if err := json.Unmarshal(value, record); err != nil {
		return nil, errors.New(clip.To(err.Error(), mostShown)) // err quotes the value
	}
	return record, nil
}

// begin waits until no other call is under way, and bounds this call. The caller calls done.
//
// While the elector leads, no call outlasts the tenure's deadline, because the elector calls OnStoppedLeading only
// after its last calls, those of a release, have returned. Nothing is lost by that: after the deadline the tenure is
// over anyway.
func (l *Lock) begin(ctx context.Context, bound time.Duration) (_ context.Context, done func(), err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	l.mu.Lock()
	t, leading := l.current, l.leading
	l.mu.Unlock()
	if leading && t != nil {
		if bound = min(bound, t.remaining()); bound <= 0 {
			<-l.turn
			return nil, nil, fmt.Errorf("%w: the deadline has passed, and the elector has not stopped", ErrLost)
		}
	}
	l.bounded = bound
	ctx, cancel := context.WithTimeout(ctx, bound)
	etcd.Of(l.client).Reconnect()
	return ctx, func() { cancel(); <-l.turn }, nil
}

// The bounds of the options.
const (
	maxIdentity    = 4 << 10
	maxRecord      = 64 << 10 // bytes; client-go's records have some 300 and an identity of at most 4 KiB
	maxEra         = math.MaxInt16
	defaultTimeout = 2 * time.Second
	maxTimeout     = time.Minute
)

// Options of a [Lock]. The zero value of a field is its default.
type Options struct {
	// Identity is the candidate's name in the record. UTF-8, at most 4 KiB. Default: host/pid/random, which no two
	// Locks share. Two Locks with the same Identity still exclude each other, but people who read the record cannot
	// tell them apart.
	Identity string
	// StableIdentity says that Identity is the same at each start and belongs to one process at a time, such as the
	// name of a StatefulSet's pod. A process that crashed and comes back then leads again at once, with a larger token,
	// instead of waiting until the record of its earlier start has expired. It takes over only a record that its first
	// Get finds. Requires Identity. If two processes with the identity run at once after all, the second to start takes
	// the lead from the first, once, and the fence refuses what the first still writes. Default: false.
	StableIdentity bool
	// Prefix is put before the key as it is: with "jobs/", the name "a" has the key "jobs//k8slock/a". UTF-8 without
	// NUL, at most 1,024 bytes. Default: none, which keeps the key apart from every lock and election of leasefence;
	// with "jobs/", etcd's own concurrency package would take the key for a contender in a queue named "jobs".
	Prefix string
	// Era is part of each token: raise it after a restore of etcd or a move to another cluster, and every new token is
	// larger than every old one; see [fence.Token]. 0 to 32767. Default 0.
	Era uint16
	// Timeout bounds each call, so that a request that hangs does not cost the leadership. After each quarter of
	// Timeout without an answer the call asks another endpoint too. 0 to 1 minute; the bound of an acquisition or a
	// renewal is never more than a quarter of the record's lease duration. Default 2 s.
	Timeout time.Duration
	// Logger receives the elector's events, and losses. A goroutine of the Lock writes to it, in order, so a handler
	// that blocks delays neither the elector nor a deadline. Default: silent.
	Logger *slog.Logger
}

// resolve checks the arguments of New and fills in the defaults.
func (o Options) resolve(client *clientv3.Client, name string) (Options, error) {
	if client == nil {
		return o, errors.New("k8slock: client is nil, want an etcd client")
	}
	if err := queue.CheckName(name); err != nil {
		return o, fmt.Errorf("k8slock: name %w", err)
	}
	switch {
	case len(o.Identity) > maxIdentity:
		return o, fmt.Errorf("k8slock: Options.Identity has %d bytes, want 0 to %d", len(o.Identity), maxIdentity)
	case !utf8.ValidString(o.Identity): // the record is JSON, which would change it
		return o, fmt.Errorf("k8slock: Options.Identity is %q, want UTF-8", o.Identity)
	case o.StableIdentity && o.Identity == "":
		return o, errors.New("k8slock: Options.StableIdentity is set and Options.Identity is empty, want the identity")
	case len(o.Prefix) > queue.MaxName:
		return o, fmt.Errorf("k8slock: Options.Prefix has %d bytes, want 0 to %d", len(o.Prefix), queue.MaxName)
	case !utf8.ValidString(o.Prefix) || strings.ContainsRune(o.Prefix, 0):
		return o, fmt.Errorf("k8slock: Options.Prefix is %q, want UTF-8 without NUL", o.Prefix)
	case o.Era > maxEra:
		return o, fmt.Errorf("k8slock: Options.Era is %d, want 0 to %d", o.Era, maxEra)
	case o.Timeout < 0 || o.Timeout > maxTimeout:
		return o, fmt.Errorf("k8slock: Options.Timeout is %v, want 0 (%v) to %v", o.Timeout, defaultTimeout, maxTimeout)
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		o.Identity = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text())
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return o, nil
}

// The outcomes that callers tell apart with errors.Is. The methods of [resourcelock.Interface] also return errors of
// k8s.io/apimachinery/pkg/api/errors, which client-go looks for.
var (
	// ErrNotLeading says that this Lock has no tenure now: it never had one, or it has ended.
	ErrNotLeading = errors.New("k8slock: not leading")
	// ErrLost says that a tenure has ended although the elector did not stop.
	ErrLost = errors.New("k8slock: leadership lost")
	// ErrStopped says that the elector gave up its tenure, with or without a release.
	ErrStopped = errors.New("k8slock: leadership given up")
)

// resource names the records in errors of the API.
var resource = schema.GroupResource{Group: "leasefence", Resource: "k8slock"}

func (l *Lock) notFound() error      { return apierrors.NewNotFound(resource, l.name) }
func (l *Lock) alreadyExists() error { return apierrors.NewAlreadyExists(resource, l.name) }
func (l *Lock) conflict() error      { return apierrors.NewConflict(resource, l.name, errConflict) }

var errConflict = errors.New("the record has changed since it was read")
