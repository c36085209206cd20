package lease

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// TryLock takes the lock called name if nobody holds it or waits for it. Otherwise it returns at once a [*LockedError],
// which matches [ErrLocked] and names the holder. Other errors are those of [Session.Lock].
func (s *Session) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.acquire(ctx, name, opts, mode{kind: KindLock, try: true})
}

// findHolder returns the error of TryLock when another acquisition of this session is ahead.
func (c *contender) findHolder(ctx context.Context) error {
	var holder *mvccpb.KeyValue
	_, err := c.g.while(ctx, func(a *etcd.Attempt) (err error) {
		holder, err = c.g.queue.Owner(a, c.g.s.opts.Prefix+c.name+"/")
		return err
	})
	switch {
	case err != nil:
		return err
	case holder != nil:
		return c.lockedBy(holder)
	}
	return &LockedError{Name: c.name, Owner: c.ahead.owner} // the acquisition ahead has not entered etcd's queue yet
}

func (c *contender) lockedBy(holder *mvccpb.KeyValue) error {
	token, _ := fence.NewToken(c.g.s.opts.Era, holder.CreateRevision) // 0 if the revision is out of the range of tokens
	return &LockedError{Name: nodeName(c.name), Owner: ownerIn(holder), Key: clip.To(string(holder.Key), maxKey), Token: token}
}

// ownerIn returns the text for people in a contender's key.
func ownerIn(kv *mvccpb.KeyValue) string {
	return clip.To(queue.Text(kv), maxOwner)
}
