package k8slock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/logqueue"
)

// root begins each key. No name of a lock or an election begins with "/", so the key is in no queue.
const root = "/k8slock/"

// mostShown is how many bytes of foreign text errors and log lines show.
const mostShown = 64

// elsewhere is added to this Lock's identity in the record of another process with the same identity.
const elsewhere = " (another process)"

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
	if !l.ours {
		l.lose(fmt.Sprintf("the record is %q's", clip.To(record.HolderIdentity, mostShown)))
		if record.HolderIdentity == l.identity {
			record.HolderIdentity = l.namesake(kv.ModRevision)
		}
	}
	return record, kv.Value, nil
}

// namesake returns the HolderIdentity to show in a record that has this Lock's identity but is not its own.
//
// A stable identity belongs to one process at a time. So a record that was there before the first Get belongs to a
// process that has ended, and is shown as released. A record written later belongs to a second process, against what
// the option says. It is not taken over, since the two would then take the lead from each other at each try.
func (l *Lock) namesake(revision int64) string {
	if l.stable && revision == l.earlier {
		return ""
	}
	return l.identity + elsewhere
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
