package k8slock

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

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
