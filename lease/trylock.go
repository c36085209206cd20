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
	var ahead *contender // another acquisition of the session
	return s.acquire(ctx, name, opts, mode{
		kind: KindLock, try: true,
		join: func(c *contender) { ahead = c.g.turns.join(c, true) },
		enter: func(c *contender, ctx context.Context) (*contender, error) {
			if ahead != nil {
				return c, c.findHolder(ctx, ahead.owner)
			}
			return c.tryEnter(ctx)
		},
	})
}

// findHolder returns the error of TryLock when another acquisition of this session is ahead, with the text owner.
func (c *contender) findHolder(ctx context.Context, owner string) error {
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
	return &LockedError{Name: c.name, Owner: owner} // the acquisition ahead has not entered etcd's queue yet
}

func (c *contender) lockedBy(holder *mvccpb.KeyValue) error {
	token, _ := fence.NewToken(c.g.s.opts.Era, holder.CreateRevision) // 0 if the revision is out of the range of tokens
	return &LockedError{Name: nodeName(c.name), Owner: ownerIn(holder), Key: clip.To(string(holder.Key), maxKey), Token: token}
}

// ownerIn returns the text for people in a contender's key.
func ownerIn(kv *mvccpb.KeyValue) string {
	return clip.To(queue.Text(kv), maxOwner)
}
