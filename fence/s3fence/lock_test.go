package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// of is the context of a lock's holder, or of one whose token came without a name.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return named(fence.NewContext(t.Context(), token), lock)
}

// readerOf is of for the holder of a read lock.
func readerOf(t *testing.T, lock string, token fence.ReadToken) context.Context {
	t.Helper()
	return named(fence.NewReadContext(t.Context(), token), lock)
}

func named(ctx context.Context, lock string) context.Context {
	if lock == "" {
		return ctx
	}
	return fence.WithLock(ctx, lock)
}

// verb is a verb on a manifest's object, so that those of Manifest are tried too.
type verb struct {
	do     func(b *s3fence.Bucket, ctx context.Context, key string) error
	reads  bool
	writes bool // whenever it is accepted, not only where a mark has to change
	checks bool // it never writes
}

func ofManifest(do func(m *s3fence.Manifest, ctx context.Context) error) func(*s3fence.Bucket, context.Context, string) error {
	return func(b *s3fence.Bucket, ctx context.Context, key string) error {
		m, err := b.Manifest(key)
		if err != nil {
			return err
		}
		return do(m, ctx)
	}
}

const content = `{"version":1,"parts":{}}`

var verbs = map[string]verb{
	"Put": {writes: true, do: func(b *s3fence.Bucket, ctx context.Context, key string) error {
		return b.Put(ctx, key, []byte(content))
	}},
	"Update": {writes: true, do: func(b *s3fence.Bucket, ctx context.Context, key string) error {
		return b.Update(ctx, key, func([]byte) ([]byte, error) { return []byte(content), nil })
	}},
	"Commit": {writes: true, do: ofManifest(func(m *s3fence.Manifest, ctx context.Context) error {
		return m.Commit(ctx, s3fence.Changes{Put: map[string][]byte{"a": []byte("1")}})
	})},
	"Claim":              {do: (*s3fence.Bucket).Claim},
	"Check":              {checks: true, do: (*s3fence.Bucket).Check},
	"ClaimRead":          {reads: true, do: (*s3fence.Bucket).ClaimRead},
	"CheckRead":          {reads: true, do: (*s3fence.Bucket).CheckRead},
	"Manifest.Claim":     {do: ofManifest((*s3fence.Manifest).Claim)},
	"Manifest.Check":     {checks: true, do: ofManifest((*s3fence.Manifest).Check)},
	"Manifest.ClaimRead": {reads: true, do: ofManifest((*s3fence.Manifest).ClaimRead)},
	"Manifest.CheckRead": {reads: true, do: ofManifest((*s3fence.Manifest).CheckRead)},
}

// context is that of a holder who may use the verb.
func (v verb) context(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	if v.reads {
		return readerOf(t, lock, fence.ReadToken(token))
	}
	return of(t, lock, token)
}

func requireOther(t *testing.T, err error, want fence.OtherLockError) {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrOtherLock)
	require.NotErrorIs(t, err, fence.ErrStale)
	want.Resource = "data/rows"
	require.Equal(t, &want, err)
}

// The holder of another lock is not let in by its higher token, and so it does not fence the rightful holder out. A refusal is
// decided by what was read first, and nothing is sent after it.
func TestBucket_refusesAnotherLock(t *testing.T) {
	for name, v := range verbs {
		t.Run(name, func(t *testing.T) {
			l, b := newLedger(t, s3fence.Options{})
			require.NoError(t, b.Put(of(t, "accounts", 54), "rows", []byte(content)))
			before := l.body("rows")
			l.count()
			for _, token := range []fence.Token{41, 54, 60} {
				err := v.do(b, v.context(t, "report", token), "rows")
				requireOther(t, err, fence.OtherLockError{Token: token, Read: v.reads, Lock: "report", Follows: "accounts"})
				gets, puts := l.count()
				require.Equal(t, []int{1, 0}, []int{gets, puts}, "GET and PUT")
			}
			require.ErrorIs(t, v.do(b, v.context(t, "accounts", 53), "rows"), fence.ErrStale)
			require.Equal(t, before, l.body("rows"), "a refusal changes nothing")
			require.NoError(t, v.do(b, v.context(t, "accounts", 54), "rows"))
			require.NoError(t, v.do(b, v.context(t, "accounts", 55), "rows"))
			require.ErrorIs(t, b.Claim(of(t, "report", 99), "rows"), fence.ErrOtherLock, "the name stays where a mark is raised")
			require.NoError(t, b.Put(of(t, "accounts", 60), "rows", []byte(content)))
		})
	}
}

// A token without a name is refused at an object that follows a lock. A stale one is stale.
func TestBucket_tokensWithoutAName(t *testing.T) {
	for name, v := range verbs {
		t.Run(name, func(t *testing.T) {
			l, b := newLedger(t, s3fence.Options{})
			require.NoError(t, b.Put(of(t, "accounts", 54), "rows", []byte(content)))
			before := l.body("rows")
			for _, token := range []fence.Token{54, 60} {
				for _, ctx := range []context.Context{
					v.context(t, "", token),
					fence.WithLock(v.context(t, "", token), "accounts", "stock"),
					fence.WithLock(v.context(t, "accounts", token)), // a way to do without
				} {
					err := v.do(b, ctx, "rows")
					requireOther(t, err, fence.OtherLockError{Token: token, Read: v.reads, Follows: "accounts"})
				}
			}
			err := v.do(b, v.context(t, "", 41), "rows")
			require.Equal(t, &fence.StaleError{Resource: "data/rows", Token: 41, Highest: 54, Read: v.reads}, err)
			require.Equal(t, before, l.body("rows"))

			allows := newBucket(t, l.RoundTrip, s3fence.Options{AllowUnnamed: true})
			require.NoError(t, v.do(allows, v.context(t, "", 54), "rows"))
			require.NoError(t, v.do(allows, v.context(t, "", 60), "rows"))
			require.ErrorIs(t, v.do(allows, v.context(t, "", 41), "rows"), fence.ErrStale)
			requireOther(t, v.do(allows, v.context(t, "report", 99), "rows"),
				fence.OtherLockError{Token: 99, Read: v.reads, Lock: "report", Follows: "accounts"})
			require.NoError(t, v.do(b, v.context(t, "accounts", 60), "rows"), "it goes on following its lock")
		})
	}
}

// An object whose marks have no name, as those of earlier versions, follows the lock of the next token that is accepted with one,
// also if no mark rises. That costs one write, and none from then on.
func TestBucket_takesTheNameOfTheNextToken(t *testing.T) {
	for name, v := range verbs {
		if v.checks {
			continue
		}
		for have, begin := range map[string]func(b *s3fence.Bucket) error{
			"no object":    func(*s3fence.Bucket) error { return nil },
			"a write mark": func(b *s3fence.Bucket) error { return b.Put(of(t, "", 54), "rows", []byte(content)) },
			"two marks": func(b *s3fence.Bucket) error {
				return errors.Join(b.Put(of(t, "", 41), "rows", []byte(content)), b.ClaimRead(readerOf(t, "", 54), "rows"))
			},
			"a reader's mark": func(b *s3fence.Bucket) error { return b.ClaimRead(readerOf(t, "", 54), "rows") },
		} {
			t.Run(name+"/"+have, func(t *testing.T) {
				l, b := newLedger(t, s3fence.Options{})
				require.NoError(t, begin(b))
				require.False(t, bytes.HasPrefix(l.body("rows"), []byte("leasefence-s3fence v03 ")), "who uses no names keeps the form")
				require.NoError(t, v.do(b, v.context(t, "accounts", 54), "rows"))
				require.True(t, bytes.HasPrefix(l.body("rows"), []byte("leasefence-s3fence v03 ")))
				requireOther(t, b.Check(of(t, "report", 99), "rows"),
					fence.OtherLockError{Token: 99, Lock: "report", Follows: "accounts"})
				require.ErrorIs(t, b.Check(of(t, "accounts", 53), "rows"), fence.ErrStale)
				require.NoError(t, b.Check(of(t, "accounts", 54), "rows"))

				l.count()
				require.NoError(t, v.do(b, v.context(t, "accounts", 54), "rows"))
				if gets, puts := l.count(); !v.writes {
					require.Equal(t, []int{1, 0}, []int{gets, puts}, "GET and PUT")
				}
			})
		}
	}
}

// The lock of the object is told with what was read.
func TestBucket_tellsTheLock(t *testing.T) {
	_, b := newLedger(t, s3fence.Options{})
	m, err := b.Manifest("rows")
	require.NoError(t, err)
	for _, lock := range []string{"", "accounts"} {
		require.NoError(t, m.Commit(of(t, lock, 54), s3fence.Changes{}))
		o, err := b.Get(t.Context(), "rows")
		require.NoError(t, err)
		require.Equal(t, lock, o.Lock)
		s, err := m.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, lock, s.Lock)
	}
	require.NoError(t, b.ClaimRead(readerOf(t, "accounts", 60), "rows"))
	o, err := b.Get(t.Context(), "rows")
	require.NoError(t, err)
	require.Equal(t, "accounts", o.Lock)
	require.Equal(t, fence.Token(54), o.Token)
	require.Equal(t, &fence.StaleError{Resource: "data/rows", Token: 55, Highest: 60, ByReader: true},
		b.Check(of(t, "accounts", 55), "rows"), "the line has both marks and the name")
}

// Another lock's claim comes between the look and the write, at each step.
func TestBucket_anotherLockClaimsMeanwhile(t *testing.T) {
	for name, v := range verbs {
		if v.checks {
			continue
		}
		for _, s := range steps {
			for _, lock := range []string{"accounts", ""} {
				for _, exists := range []bool{true, false} {
					for _, reader := range []bool{true, false} {
						t.Run(fmt.Sprintf("%s of %q/%v/there is one %t/a reader %t", name, lock, s, exists, reader), func(t *testing.T) {
							l, b := newLedger(t, s3fence.Options{})
							other := newBucket(t, l.memory.RoundTrip, s3fence.Options{})
							if exists {
								require.NoError(t, b.Put(of(t, "", 40), "rows", []byte(content)))
							}
							var claim error
							var between []byte
							l.at = map[step]func(){s: func() {
								if reader {
									claim = other.ClaimRead(readerOf(t, "report", 50), "rows")
								} else {
									claim = other.Claim(of(t, "report", 50), "rows")
								}
								between = l.body("rows")
							}}
							err := v.do(b, v.context(t, lock, 60), "rows")
							if s == (step{http.MethodPut, true}) {
								require.NoError(t, err, "it was done before the claim")
								if lock != "" {
									requireOther(t, claim, fence.OtherLockError{Token: 50, Read: reader, Lock: "report", Follows: lock})
								}
								return
							}
							require.NoError(t, claim)
							requireOther(t, err, fence.OtherLockError{Token: 60, Read: v.reads, Lock: lock, Follows: "report"})
							require.Equal(t, between, l.body("rows"), "the refused one has written")
							require.NoError(t, other.Claim(of(t, "report", 51), "rows"), "it was fenced out by another lock's token")
						})
					}
				}
			}
		}
	}
}

// The longest name fits into what is read of an object without its payload.
func TestBucket_longestLock(t *testing.T) {
	l, b := newLedger(t, s3fence.Options{MaxSize: 10})
	lock := strings.Repeat("é", fence.MaxLock/2)
	require.NoError(t, b.Put(of(t, lock, 54), "rows", []byte("0123456789")))
	require.NoError(t, b.ClaimRead(readerOf(t, lock, 60), "rows"))
	require.Len(t, l.body("rows"), 2458+10)
	require.NoError(t, b.Check(of(t, lock, 60), "rows"))
	require.NoError(t, b.CheckRead(readerOf(t, lock, 60), "rows"))
	require.ErrorIs(t, b.Check(of(t, lock[2:], 60), "rows"), fence.ErrOtherLock)
	require.NoError(t, b.Put(of(t, lock, 60), "rows", []byte("9876543210")), "reads the line alone")
	require.NoError(t, b.Update(of(t, lock, 60), "rows", func(old []byte) ([]byte, error) { return old, nil }))
	o, err := b.Get(t.Context(), "rows")
	require.NoError(t, err)
	require.Equal(t, s3fence.Object{Payload: []byte("9876543210"), Token: 60, Lock: lock, ETag: o.ETag}, o)
}

func TestBucket_refusesBadLocks(t *testing.T) {
	b, err := s3fence.NewBucket(silent(t), "data", s3fence.Options{})
	require.NoError(t, err)
	all := map[string]func(b *s3fence.Bucket, ctx context.Context, key string) error{"Move": (*s3fence.Bucket).Move}
	for name, v := range verbs {
		all[name] = v.do
	}
	for name, do := range all {
		for lock, want := range map[string]string{
			strings.Repeat("l", 2305): "its lock's name has 2305 bytes, want 1 to 2304",
			"a\x00":                   `its lock's name is "a\x00", want UTF-8 without NUL`,
			"\xff":                    `its lock's name is "\xff", want UTF-8 without NUL`,
		} {
			err := do(b, verbs[name].context(t, lock, 54), "rows")
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, "s3fence: ")
			require.ErrorContains(t, err, `"data/rows": fence: invalid token: `+want)
		}
	}
	for _, ctx := range []context.Context{of(t, "", 54), fence.WithLock(of(t, "", 54), "accounts", "stock")} {
		err := b.Move(ctx, "rows")
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.EqualError(t, err, `s3fence: move "data/rows": fence: invalid token: the context names no lock to follow, or several, `+
			"want the context of a lock, or one of fence.WithLock or fence.ForLock")
	}
	require.ErrorContains(t, b.Move(readerOf(t, "accounts", 54), "rows"), "the context carries a reader's")
	requireKeys(t, func(key string) error { return b.Move(of(t, "accounts", 54), key) })
}
