package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// own is the context with the lock that the objects follow.
func own(ctx context.Context) context.Context { return fence.WithLock(ctx, "accounts") }

// intruder is the holder of another lock, whose tokens are higher than all others.
type intruder struct {
	reliable *proxy
	follows  sync.Map // key → *sync.Once
}

// act tries what writes, and says what has let it in. The first time it has the object follow its lock before, if it does not yet.
func (i *intruder) act(ctx context.Context, p *proxy, key string) error {
	ctx = context.WithoutCancel(ctx)
	first, _ := i.follows.LoadOrStore(key, new(sync.Once))
	var err error
	first.(*sync.Once).Do(func() { err = i.reliable.Claim(own(fence.NewContext(ctx, 1)), key) })
	if err != nil && !errors.Is(err, fence.ErrStale) {
		return err
	}
	writer := fence.WithLock(fence.NewContext(ctx, 5000), "report")
	reader := fence.WithLock(fence.NewReadContext(ctx, 5000), "report")
	for verb, err := range map[string]error{
		"Put":       p.Put(writer, key, []byte("report")),
		"Update":    p.Update(writer, key, func([]byte) ([]byte, error) { return []byte("report"), nil }),
		"Claim":     p.Claim(writer, key),
		"ClaimRead": p.ClaimRead(reader, key),
	} {
		// On a line that loses answers a read may fail too, but nothing may have been written.
		lost := p != i.reliable && err != nil && !errors.Is(err, s3fence.ErrUnknown)
		if !errors.Is(err, fence.ErrOtherLock) && !lost {
			return fmt.Errorf("%s of another lock: %w", verb, cmp.Or(err, errLetIn))
		}
	}
	return nil
}

var errLetIn = errors.New("accepted")

// Histories of one lock as in TestBucket_grants, at an object where the holder of another acts after each call.
func TestBucket_grants_ofTwoLocks(t *testing.T) {
	p := newProxy(t, "", nil)
	i := &intruder{reliable: p}
	with := func(verb func(context.Context, string) error) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			err := verb(own(ctx), key)
			return errors.Join(err, i.act(ctx, p, key))
		}
	}
	fencetest.Grants(t, fencetest.Verbs{
		Claim: with(p.Claim), ClaimRead: with(p.ClaimRead), CheckRead: with(p.CheckRead),
		Check: with(func(ctx context.Context, key string) error { return p.Put(ctx, key, nil) }),
	})
}

// On a server: the longest name, and a manifest that is moved, with the garbage of the lock before.
func TestManifest_Move(t *testing.T) {
	p := newProxy(t, "", nil)
	m := manifest(t, p, "table")
	old := func(token fence.Token) context.Context {
		return fence.WithLock(holding(t, token), strings.Repeat("é", fence.MaxLock/2))
	}
	require.NoError(t, m.Commit(old(41), s3fence.Changes{Put: files("a", "1", "b", "1")}))
	require.NoError(t, m.Commit(old(41), s3fence.Changes{Put: files("a", "2")}))
	before, err := m.Read(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, m.Commit(own(holding(t, 54)), s3fence.Changes{Delete: []string{"a"}}), fence.ErrOtherLock)

	require.NoError(t, m.Move(own(holding(t, 54))))
	require.ErrorIs(t, m.Commit(old(60), s3fence.Changes{Delete: []string{"a"}}), fence.ErrOtherLock)
	require.NoError(t, m.Commit(own(holding(t, 54)), s3fence.Changes{Put: files("a", "3")}))
	now, err := m.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "accounts", now.Lock)
	require.Equal(t, map[string]string{"a": "3", "b": "1"}, contents(t, now))
	garbage, err := m.Garbage(t.Context())
	require.NoError(t, err)
	require.Len(t, garbage, 2)
	require.Contains(t, garbage, before.Parts["a"].Key)
}
