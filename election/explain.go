package election

import "context"

// Explain tells why a resource refused this leadership's token with err. If etcd's revisions went back, as they do when
// etcd is restored from a snapshot, the result matches [lease.ErrRestored] and [fence.ErrStale]: raise the session's
// era. In all other cases the result is err: another candidate leads, or has led since. See [lease.Lock.Explain].
func (l *Leadership) Explain(ctx context.Context, err error) error { return l.lock.Explain(ctx, err) }
