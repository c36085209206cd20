package election

import "context"

// Explain reports whether a resource refused this leadership's token because etcd's revisions went back, as they do when it
// is restored from a snapshot: then the result matches [lease.ErrRestored] and [fence.ErrStale], and the session's era
// must be raised. In all other cases the result is err: another candidate leads, or has led since. See
// [lease.Lock.Explain].
func (l *Leadership) Explain(ctx context.Context, err error) error { return l.lock.Explain(ctx, err) }
