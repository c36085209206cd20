package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

func TestBucket_Move(t *testing.T) {
	for name, move := range map[string]func(b *s3fence.Bucket, ctx context.Context, key string) error{
		"Bucket": (*s3fence.Bucket).Move, "Manifest": ofManifest((*s3fence.Manifest).Move),
	} {
		t.Run(name, func(t *testing.T) {
			l, b := newLedger(t, s3fence.Options{})
			require.NoError(t, b.Put(of(t, "accounts", 54), "rows", []byte(content)))
			require.NoError(t, b.ClaimRead(readerOf(t, "accounts", 60), "rows"))
			before := l.body("rows")
			require.Equal(t, &fence.StaleError{Resource: "data/rows", Token: 53, Highest: 54}, move(b, of(t, "ledger", 53), "rows"))
			require.Equal(t, &fence.StaleError{Resource: "data/rows", Token: 59, Highest: 60, ByReader: true},
				move(b, of(t, "ledger", 59), "rows"))
			require.Equal(t, before, l.body("rows"), "a move that is refused changes nothing")

			require.NoError(t, move(b, of(t, "ledger", 60), "rows"))
			o, err := b.Get(t.Context(), "rows")
			require.NoError(t, err)
			require.Equal(t, s3fence.Object{Payload: []byte(content), Token: 60, Lock: "ledger", ETag: o.ETag}, o)
			for name, v := range verbs {
				requireOther(t, v.do(b, v.context(t, "accounts", 61), "rows"),
					fence.OtherLockError{Token: 61, Read: v.reads, Lock: "accounts", Follows: "ledger"})
				if !v.reads {
					require.ErrorIs(t, v.do(b, of(t, "ledger", 59), "rows"), fence.ErrStale, "%s: the move has claimed", name)
				}
			}
			l.count()
			require.NoError(t, move(b, of(t, "ledger", 60), "rows"))
			gets, puts := l.count()
			require.Equal(t, []int{1, 0}, []int{gets, puts}, "repeated, it writes nothing")

			require.NoError(t, move(b, of(t, "ledger", 54), "new"))
			_, err = b.Get(t.Context(), "new")
			require.ErrorIs(t, err, s3fence.ErrNoObject)
			require.ErrorIs(t, b.Put(of(t, "accounts", 60), "new", nil), fence.ErrOtherLock)
		})
	}
}

// A write of the lock that the object follows is paused at each step, and the object is moved.
func TestBucket_Move_whileTheOldLockWrites(t *testing.T) {
	for name, v := range verbs {
		if v.checks {
			continue
		}
		for _, s := range steps {
			t.Run(fmt.Sprintf("%s/%v", name, s), func(t *testing.T) {
				l, b := newLedger(t, s3fence.Options{})
				other := newBucket(t, l.memory.RoundTrip, s3fence.Options{})
				require.NoError(t, b.Put(of(t, "accounts", 40), "rows", []byte(content)))
				var moved error
				var after []byte
				l.at = map[step]func(){s: func() {
					moved = other.Move(of(t, "ledger", 54), "rows")
					after = l.body("rows")
				}}
				err := v.do(b, v.context(t, "accounts", 50), "rows")
				require.NoError(t, moved)
				require.Equal(t, after, l.body("rows"), "written after the move")
				require.Equal(t, bytes.Contains(after, []byte(`"a"`)), name == "Commit" && err == nil, "the move has lost an accepted write")
				if s == (step{http.MethodPut, true}) {
					require.NoError(t, err, "it was done before the move")
				} else {
					requireOther(t, err, fence.OtherLockError{Token: 50, Read: v.reads, Lock: "accounts", Follows: "ledger"})
				}
				require.NoError(t, other.Put(of(t, "ledger", 54), "rows", nil))
			})
		}
	}
}

// A move is paused at each step, and the lock that the object follows writes, with an older token or with a newer one.
func TestBucket_Move_pausedAtAStep(t *testing.T) {
	for _, s := range steps {
		for _, token := range []fence.Token{50, 60} {
			t.Run(fmt.Sprintf("%v/%d", s, token), func(t *testing.T) {
				l, b := newLedger(t, s3fence.Options{})
				other := newBucket(t, l.memory.RoundTrip, s3fence.Options{})
				require.NoError(t, b.Put(of(t, "accounts", 40), "rows", []byte("base")))
				var written error
				l.at = map[step]func(){s: func() { written = other.Put(of(t, "accounts", token), "rows", []byte("accounts")) }}
				err := b.Move(of(t, "ledger", 54), "rows")
				o, getErr := b.Get(t.Context(), "rows")
				require.NoError(t, getErr)
				switch {
				case s == step{http.MethodPut, true}:
					require.NoError(t, err)
					requireOther(t, written, fence.OtherLockError{Token: token, Lock: "accounts", Follows: "ledger"})
					require.Equal(t, "base ledger 54", fmt.Sprintf("%s %s %d", o.Payload, o.Lock, o.Token))
				case token > 54:
					require.NoError(t, written)
					require.Equal(t, &fence.StaleError{Resource: "data/rows", Token: 54, Highest: token}, err)
					require.Equal(t, "accounts accounts 60", fmt.Sprintf("%s %s %d", o.Payload, o.Lock, o.Token))
				default:
					require.NoError(t, written)
					require.NoError(t, err)
					require.Equal(t, "accounts ledger 54", fmt.Sprintf("%s %s %d", o.Payload, o.Lock, o.Token))
				}
			})
		}
	}
}

// The answer to a write is lost, or goes to a copy of the request. It is recognised after one move, and unknown after two.
func TestBucket_lostAnswerAndMoved(t *testing.T) {
	for name, write := range map[string]func(b *s3fence.Bucket, ctx context.Context, key string) error{
		"Put": verbs["Put"].do, "Claim": (*s3fence.Bucket).Claim, "Move": (*s3fence.Bucket).Move,
	} {
		for _, copied := range []bool{true, false} {
			for moves := range 3 {
				t.Run(fmt.Sprintf("%s/copied %t/%d moves", name, copied, moves), func(t *testing.T) {
					var store memory
					other := newBucket(t, store.RoundTrip, s3fence.Options{})
					require.NoError(t, other.Put(of(t, "accounts", 40), "rows", []byte("base")))
					var puts int
					b := newBucket(t, func(r *http.Request) (*http.Response, error) {
						resp, err := store.RoundTrip(r)
						if r.Method != http.MethodPut || err != nil {
							return resp, err
						}
						puts++
						for i := range moves {
							require.NoError(t, other.Move(of(t, []string{"x", "y"}[i], 60), "rows"))
						}
						if copied {
							return reply(r, http.StatusPreconditionFailed, "", []byte(`<Error><Code>PreconditionFailed</Code></Error>`)), nil
						}
						return nil, errors.New("reset")
					}, s3fence.Options{})
					err := write(b, of(t, "accounts", 54), "rows")
					require.Equal(t, 1, puts)
					if moves < 2 {
						require.NoError(t, err)
						return
					}
					require.ErrorIs(t, err, s3fence.ErrUnknown)
					if name != "Move" {
						require.ErrorIs(t, err, fence.ErrOtherLock)
						return
					}
					require.ErrorIs(t, err, fence.ErrStale)
				})
			}
		}
	}
}

// A commit of the old lock uploads nothing after a move.
func TestManifest_Move_oldLockCommits(t *testing.T) {
	l, b := newLedger(t, s3fence.Options{})
	m, err := b.Manifest("rows")
	require.NoError(t, err)
	put := func(payload string) s3fence.Changes {
		return s3fence.Changes{Put: map[string][]byte{"a": []byte(payload)}}
	}
	require.NoError(t, m.Commit(of(t, "accounts", 54), put("1")))
	require.NoError(t, m.Move(of(t, "ledger", 60)))
	l.count()
	requireOther(t, m.Commit(of(t, "accounts", 61), put("2")), fence.OtherLockError{Token: 61, Lock: "accounts", Follows: "ledger"})
	_, puts := l.count()
	require.Zero(t, puts)
	require.NoError(t, m.Commit(of(t, "ledger", 60), put("3")))
	s, err := m.Read(t.Context())
	require.NoError(t, err)
	payload, err := s.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "3", string(payload))
}
