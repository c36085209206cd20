package lease

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// The bounds of the options.
const (
	defaultTTL = 30 * time.Second
	maxTTL     = 9_000_000_000 * time.Second // the server's, lease.MaxLeaseTTL in etcd
	maxOwner   = 4 << 10
	maxEra     = math.MaxInt16
)

// Options of a [Session]. The zero value of a field is its default.
type Options struct {
	// TTL of the lease: whole seconds, rounded up; 1 s to 9,000,000,000 s, the server's maximum. Default 30 s. The
	// server may raise it (to 2 s with its default election timeout); [Status] has the TTL that it granted.
	TTL time.Duration
	// Margin is taken off the local deadline. It covers clocks that do not tick at quite the same rate, and the time
	// from the deadline to the last write. 0 to a third of the TTL, so that the lease outlives one lost renewal.
	// Default: a tenth of the granted TTL, at most 1 s. That covers a server clock that is fast by up to a ninth with a
	// TTL of up to 10 s, and by up to a 29th (3.4 %) with 30 s.
	Margin time.Duration
	// Prefix is put before every name as it is: with "jobs/", the name "a" is the key "jobs/a/…" in etcd. UTF-8 without
	// NUL, at most 1,024 bytes, with no part that begins with "~". Default: none.
	Prefix string
	// Owner says, for people, who holds the lock; it is stored in the lock's key. At most 4 KiB. Default: host/pid.
	Owner string
	// Era makes every new token larger than every token of a lower era. An operator raises it after a restore of etcd
	// or a move to another cluster; see [fence.Token]. 0 to 32767. Default 0. Stores accept eras up to their MaxEra,
	// which is [fence.DefaultMaxEra] unless set.
	Era uint16
	// Logger receives jeopardy, losses and clean-up. A goroutine of the session writes to it, in order, so a handler
	// that blocks delays nothing else. While 256 records wait for it, further ones are dropped and counted. Default:
	// silent.
	Logger *slog.Logger
	// Hooks are called on the events that [Hooks] lists. Default: none.
	Hooks *Hooks
}

// resolve checks o and fills in the defaults. Margin 0 stays: its default depends on the TTL that the server grants.
func (o Options) resolve(client *clientv3.Client) (Options, error) {
	if err := etcd.CheckClient(client); err != nil {
		return o, fmt.Errorf("lease: %w", err)
	}
	switch {
	case o.TTL < 0 || o.TTL > maxTTL:
		return o, fmt.Errorf("lease: Options.TTL is %v, want 1s to %v (0: %v)", o.TTL, maxTTL, defaultTTL)
	case o.TTL == 0:
		o.TTL = defaultTTL
	default:
		if part := o.TTL % time.Second; part > 0 {
			o.TTL += time.Second - part
		}
	}
	switch {
	case o.Margin < 0 || o.Margin > o.TTL/3:
		return o, fmt.Errorf("lease: Options.Margin is %v, want 0 to a third of the TTL, %v", o.Margin, o.TTL/3)
	case len(o.Prefix) > queue.MaxName:
		return o, fmt.Errorf("lease: Options.Prefix has %d bytes, want 0 to %d", len(o.Prefix), queue.MaxName)
	case !utf8.ValidString(o.Prefix) || strings.ContainsRune(o.Prefix, 0):
		return o, fmt.Errorf("lease: Options.Prefix is %q, want UTF-8 without NUL", o.Prefix)
	case queue.HasReserved(o.Prefix):
		return o, fmt.Errorf("lease: Options.Prefix is %q, want no part that begins with \"~\"", o.Prefix)
	case o.Era > maxEra:
		return o, fmt.Errorf("lease: Options.Era is %d, want 0 to %d", o.Era, maxEra)
	}
	if err := checkOwner("Options.Owner", o.Owner); err != nil {
		return o, err
	}
	if o.Owner == "" {
		host, _ := os.Hostname()
		o.Owner = fmt.Sprintf("%s/%d", cmp.Or(host, "unknown-host"), os.Getpid())
	}
	return o, nil
}

// margin returns the margin for a lease with the TTL that the server granted.
func (o Options) margin(granted time.Duration) time.Duration {
	if o.Margin > 0 {
		return o.Margin
	}
	return min(granted/10, time.Second)
}

func checkOwner(field, owner string) error {
	if len(owner) > maxOwner {
		return fmt.Errorf("lease: %s has %d bytes, want 0 to %d", field, len(owner), maxOwner)
	}
	return nil
}

// LockOption is an option of one acquisition.
type LockOption func(*lockOptions)

type lockOptions struct {
	owner       string // the text in the key
	maxHold     time.Duration
	limitChange bool
}

// WithOwner sets the text for people in the key of this lock. At most 4 KiB. Default, also for "": [Options].Owner.
func WithOwner(owner string) LockOption {
	return func(o *lockOptions) { o.owner = owner }
}

// WithMaxHold bounds the hold: d after the grant the handle's context ends with [ErrMaxHold]. The lock itself stays
// held until Unlock, or in Do until the function has returned: it is never released under running work. Not negative.
// Default, also for 0: no bound.
func WithMaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) { o.maxHold = d }
}

// WithLimitChange lets a service change its number of permits process by process: while somebody holds a permit of
// another number, [Session.Permit] waits, first in the queue, instead of failing. Other acquisitions ignore it.
func WithLimitChange() LockOption {
	return func(o *lockOptions) { o.limitChange = true }
}

func newLockOptions(options []LockOption, session Options) (lockOptions, error) {
	if len(options) == 0 {
		return lockOptions{owner: session.Owner}, nil // the o below would be allocated on the heap
	}
	var o lockOptions
	for i, set := range options {
		if set == nil {
			return o, fmt.Errorf("lease: option %d of %d is nil, want a LockOption", i+1, len(options))
		}
		set(&o)
	}
	if o.maxHold < 0 {
		return o, fmt.Errorf("lease: WithMaxHold is %v, want 0 (no bound) or more", o.maxHold)
	}
	if err := checkOwner("WithOwner", o.owner); err != nil {
		return o, err
	}
	if o.owner == "" {
		o.owner = session.Owner
	}
	return o, nil
}
