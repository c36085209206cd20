package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// of is the context of a lock's holder, and readerOf that of a reader.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(as(t, token), lock)
}

func readerOf(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(asReader(t, token), lock)
}

// verb is a verb that knows the lock of its token.
type verb struct {
	name  string
	reads bool
	call  func(r *rig, ctx context.Context) error
}

// context is that of a holder who calls the verb.
func (v verb) context(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	ctx := as(t, token)
	if v.reads {
		ctx = asReader(t, token)
	}
	if lock == "" {
		return ctx
	}
	return fence.WithLock(ctx, lock)
}

func verbs() []verb {
	all := []verb{
		{"Claim", false, func(r *rig, ctx context.Context) error { return r.claim(ctx, resource) }},
		{"ClaimRead", true, func(r *rig, ctx context.Context) error { return r.claimRead(ctx, resource) }},
		{"CheckRead", true, func(r *rig, ctx context.Context) error {
			return r.checked(ctx, nowhere, func(conn) error { return nil })
		}},
	}
	for _, how := range forms {
		all = append(all, verb{string(how), false, func(r *rig, ctx context.Context) error { return r.run(ctx, how, nowhere, nothing) }})
	}
	return all
}

// requireOther requires the refusal of a token because of its lock.
func requireOther(t *testing.T, err error, reads bool, lock string, token fence.Token, follows string) {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrOtherLock)
	require.NotErrorIs(t, err, fence.ErrStale)
	other, ok := errors.AsType[*fence.OtherLockError](err)
	require.True(t, ok)
	require.Equal(t, fence.OtherLockError{Resource: resource, Token: token, Read: reads, Lock: lock, Follows: follows}, *other)
}

// content is the row of the marks.
type content struct {
	token, read int64
	lock        string
}

func (r *rig) content(t *testing.T) (c content) {
	t.Helper()
	require.NoError(t, r.scan(t.Context(), "SELECT token, read_token, lock_name FROM leasefence_marks WHERE resource = 'accounts'",
		&c.token, &c.read, &c.lock))
	return c
}

// A token of another lock is refused whatever its number, and changes nothing: not the marks, nor what the rightful holder may do.
func TestMarks_otherLock(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		lax := &rig{place: r.place, store: r.store, db: r.db, pool: r.pool}
		lax.adapter = lax.with(t, sqlfence.Options{AllowUnnamed: true})
		for _, named := range []verb{verbs()[0], verbs()[1]} { // the claims: a writer or a reader names the lock
			for _, v := range verbs() {
				t.Run(named.name+", then "+v.name, func(t *testing.T) {
					r.reset(t)
					require.NoError(t, r.claim(as(t, older), resource), "follows no lock")
					require.NoError(t, r.claimRead(asReader(t, older), resource))
					require.NoError(t, named.call(r, named.context(t, "accounts", older)), "the same token tells the lock")
					before := r.content(t)
					require.Equal(t, content{int64(older), int64(older), "accounts"}, before)
					for _, token := range []fence.Token{older - 1, older, newer} {
						requireOther(t, v.call(r, v.context(t, "report", token)), v.reads, "report", token, "accounts")
					}
					requireOther(t, v.call(r, v.context(t, "", older)), v.reads, "", older, "accounts")
					two := fence.WithLock(v.context(t, "", newer), "accounts", "report")
					requireOther(t, v.call(r, two), v.reads, "", newer, "accounts")
					for _, lock := range []string{"", "accounts"} {
						err := v.call(r, v.context(t, lock, older-1))
						require.ErrorIs(t, err, fence.ErrStale)
						require.NotErrorIs(t, err, fence.ErrOtherLock)
					}
					require.Equal(t, before, r.content(t))

					requireOther(t, v.call(lax, v.context(t, "report", newer)), v.reads, "report", newer, "accounts")
					require.NoError(t, v.call(lax, v.context(t, "", older)))
					require.Equal(t, before, r.content(t), "it has kept the name")
					require.NoError(t, v.call(r, v.context(t, "accounts", older)))
					require.Equal(t, before, r.content(t))

					claim := verbs()[0]
					if v.reads {
						claim = verbs()[1]
					}
					require.NoError(t, claim.call(lax, v.context(t, "", newer)))
					require.Equal(t, "accounts", r.content(t).lock, "it has kept the name of before")
					require.NoError(t, claim.call(r, v.context(t, "accounts", newer+1)))
					require.Equal(t, "accounts", r.content(t).lock)
					require.NoError(t, v.call(r, v.context(t, "accounts", newer+1)))
				})
			}
		}
	})
}

// A resource follows the lock of the first token with a name: that of a new mark, of a higher token, and of one that equals the
// mark, by any verb.
func TestMarks_followsTheFirstLock(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, v := range verbs() {
			for _, first := range []fence.Token{0, older, newer} {
				t.Run(fmt.Sprintf("%s, mark %d", v.name, first), func(t *testing.T) {
					r.reset(t)
					claim := verbs()[0]
					if v.reads {
						claim = verbs()[1]
					}
					if first != 0 {
						require.NoError(t, claim.call(r, v.context(t, "", first)))
						require.Empty(t, r.content(t).lock)
					}
					ctx := v.context(t, "accounts", newer)
					err := v.call(r, ctx)
					for first != newer && errors.Is(err, sqlfence.ErrUnclaimed) {
						require.NoError(t, claim.call(r, ctx))
						err = v.call(r, ctx)
					}
					require.NoError(t, err)
					require.Equal(t, "accounts", r.content(t).lock)
					require.NoError(t, v.call(r, ctx))
					requireOther(t, v.call(r, v.context(t, "report", newer+1)), v.reads, "report", newer+1, "accounts")
				})
			}
		}
	})
}

// The resource follows no lock yet, and a claim of one lock looks at its marks. The claim of another one gets there first.
func TestMarks_claimsOvertakenByAnotherLock(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		t.Helper()
		for _, first := range []fence.Token{0, 5} { // without a mark, and with one
			for _, reads := range []bool{false, true} {
				r.reset(t)
				if first != 0 {
					require.NoError(t, r.claim(as(t, first), resource))
				}
				err := overtaken(t, r, func(f overSQL) error {
					if reads {
						return f.claimRead(readerOf(t, "report", newer), resource)
					}
					return f.claim(of(t, "report", newer), resource)
				}, func() {
					require.NoError(t, r.claim(of(t, "accounts", older), resource), "the other claim is announced")
				})
				requireOther(t, err, reads, "report", newer, "accounts")
				require.Equal(t, content{int64(older), 0, "accounts"}, r.content(t))
				// What the claim has announced refuses nobody.
				for _, how := range forms {
					require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere))
				}
				require.NoError(t, r.checked(readerOf(t, "accounts", older), nowhere, func(conn) error { return nil }))
				require.NoError(t, r.claim(of(t, "accounts", older+1), resource))
				require.NoError(t, r.claimRead(readerOf(t, "accounts", older+2), resource))
			}
		}
	})
}

// Another lock's claim comes at every step of a transaction, of a resource that follows the transaction's lock or none yet.
func TestMarks_otherLockComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range forms {
			for _, named := range []bool{true, false} {
				for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
					if when == begun && !how.checks() {
						continue
					}
					t.Run(fmt.Sprintf("%s, named %t, %s", how, named, when), func(t *testing.T) { r.otherComes(t, how, named, when) })
				}
			}
		}
	})
}

func (r *rig) otherComes(t *testing.T, how form, named bool, when step) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	if named {
		require.NoError(t, r.claim(of(t, "accounts", older), resource))
	}
	holds := when == guarded || when == hasRead || when == hasWritten
	arrived := make(chan error, 1)
	launched := false
	err := r.increment(of(t, "accounts", older), how, func(at step) {
		if at != when || launched {
			return
		}
		launched = true
		come := func() { arrived <- r.claim(of(t, "report", newer), resource) }
		if !holds {
			come()
			return
		}
		go come()
		r.awaitWaiterOrAnswer(t, arrived) // it may see without a lock that it is refused
	})
	require.True(t, launched)
	if named || holds || when == committed {
		require.NoError(t, err)
		requireOther(t, <-arrived, false, "report", newer, "accounts")
		require.Equal(t, "accounts", r.content(t).lock)
		require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere), "nothing of the other lock is left")
		require.EqualValues(t, 2, r.row(t).n)
		return
	}
	require.NoError(t, <-arrived)
	if !how.checks() || !transient(err) {
		requireOther(t, err, false, "accounts", older, "report")
	}
	require.Zero(t, r.row(t).n)
}

func TestMarks_Move(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, v := range verbs() {
			t.Run(v.name, func(t *testing.T) {
				r.reset(t)
				require.NoError(t, r.claim(of(t, "accounts", older), resource))
				require.NoError(t, r.claimRead(readerOf(t, "accounts", older), resource))
				require.ErrorIs(t, r.move(of(t, "ledger", older-1), resource), fence.ErrStale)
				for _, ctx := range []context.Context{as(t, newer), fence.WithLock(as(t, newer), "a", "b"), readerOf(t, "ledger", newer), t.Context()} {
					require.ErrorIs(t, r.move(ctx, resource), fence.ErrInvalidToken)
				}
				require.ErrorContains(t, r.move(as(t, newer), resource), "without the name of a lock")
				require.Equal(t, content{int64(older), int64(older), "accounts"}, r.content(t), "what was refused has changed nothing")

				require.NoError(t, r.move(of(t, "ledger", newer), resource))
				require.NoError(t, r.move(of(t, "ledger", newer), resource), "again")
				require.Equal(t, content{int64(newer), int64(older), "ledger"}, r.content(t))
				requireOther(t, v.call(r, v.context(t, "accounts", newer+1)), v.reads, "accounts", newer+1, "ledger")
				require.ErrorIs(t, v.call(r, v.context(t, "ledger", newer-1)), fence.ErrStale, "it has claimed")
				if v.reads {
					require.NoError(t, r.claimRead(readerOf(t, "ledger", newer), resource))
				}
				require.NoError(t, v.call(r, v.context(t, "ledger", newer)))

				r.reset(t)
				require.NoError(t, r.move(of(t, "ledger", newer), resource), "without a mark")
				require.NoError(t, r.move(of(t, "stock", newer), resource), "two locks that were granted as one")
				require.Equal(t, content{int64(newer), 0, "stock"}, r.content(t))
			})
		}
	})
}

// A move comes at every step of a transaction under the lock that the resource has followed: it waits for the transaction, and
// later ones are refused. The tokens of the two locks say nothing about each other, so they may be equal.
func TestMarks_moveComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range forms {
			for _, token := range []fence.Token{older, newer} {
				for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
					if when == begun && !how.checks() {
						continue
					}
					t.Run(fmt.Sprintf("%s, to %d, %s", how, token, when), func(t *testing.T) { r.moveComes(t, how, token, when) })
				}
			}
		}
	})
}

func (r *rig) moveComes(t *testing.T, how form, token fence.Token, when step) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(of(t, "accounts", older), resource))
	holds := when == guarded || when == hasRead || when == hasWritten
	moved := make(chan error, 1)
	launched := false
	err := r.increment(of(t, "accounts", older), how, func(at step) {
		if at != when || launched {
			return
		}
		launched = true
		move := func() { moved <- r.move(of(t, "ledger", token), resource) }
		if !holds {
			move()
			return
		}
		go move()
		if r.kind != storetest.SQLite {
			r.awaitWaiter(t)
			require.Empty(t, moved)
		}
	})
	require.True(t, launched)
	require.NoError(t, <-moved)
	accepted := int64(0)
	switch {
	case holds || when == committed:
		require.NoError(t, err)
		accepted = 1
	case !how.checks() || !transient(err):
		requireOther(t, err, false, "accounts", older, "ledger")
	}
	requireOther(t, r.increment(of(t, "accounts", newer+1), do, nowhere), false, "accounts", newer+1, "ledger")
	n, err := r.arriveAs(of(t, "ledger", token), how)
	require.NoError(t, err)
	require.Equal(t, accepted, n, "what the new lock's holder has read")
}

// arriveAs is a first read-modify-write after a claim.
func (r *rig) arriveAs(ctx context.Context, how form) (n int64, err error) {
	token, _ := fence.FromContext(ctx)
	err = r.run(ctx, how, nowhere, func(ctx context.Context, tx conn) (err error) {
		if n, err = read(ctx, tx); err != nil {
			return err
		}
		return write(ctx, tx, n, token)
	})
	return n, err
}

// A claim is given up while it waits. What it has announced does not refuse the holders of another lock, which the resource follows
// from then on.
func TestMarks_otherLocksClaimGivenUp(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		if r.kind == storetest.SQLite {
			return // it does not tell when it waits
		}
		for _, reads := range []bool{false, true} {
			r.reset(t)
			require.NoError(t, r.claim(as(t, older), resource))
			require.NoError(t, r.increment(as(t, older), doShared, func(at step) {
				if at != hasWritten {
					return
				}
				ctx, cancel := context.WithCancel(of(t, "report", newer))
				claim := r.claim
				if reads {
					ctx, cancel = context.WithCancel(readerOf(t, "report", newer))
					claim = r.claimRead
				}
				defer cancel()
				claimed := make(chan error, 1)
				go func() { claimed <- claim(ctx, resource) }()
				r.awaitWaiter(t)
				cancel()
				require.ErrorIs(t, <-claimed, context.Canceled)
			}))
			require.NoError(t, r.claim(of(t, "accounts", older+1), resource))
			for _, how := range forms {
				require.NoError(t, r.increment(of(t, "accounts", older+1), how, nowhere))
			}
			require.NoError(t, r.claimRead(readerOf(t, "accounts", older+2), resource))
			require.NoError(t, r.checked(readerOf(t, "accounts", older+2), nowhere, func(conn) error { return nil }))
			require.Equal(t, content{int64(older + 1), int64(older + 2), "accounts"}, r.content(t))
		}
	})
}

// Names are compared byte by byte, and those that no resource can remember are refused before anything is sent.
func TestMarks_namesOfLocks(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		longest := strings.Repeat("l", fence.MaxLock)
		names := []string{"a", "A", "a ", " ", "ä", "a\u0308", `a'"\`, "a?$1", "a/~b/~c", longest, longest[1:]}
		for i, name := range names {
			require.NoError(t, r.claim(of(t, name, older), fmt.Sprint("resource ", i)))
			for j, other := range names {
				err := r.claim(of(t, other, newer), fmt.Sprint("resource ", i))
				if i == j {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, fence.ErrOtherLock)
				}
			}
		}
		for _, v := range verbs() {
			for _, bad := range []string{longest + "l", "a\x00", "\xff", ""} {
				require.ErrorIs(t, v.call(r, fence.WithLock(v.context(t, "", newer), bad)), fence.ErrInvalidToken, v.name)
			}
		}
		require.NoError(t, r.claim(as(t, older), resource), "nothing was written")
	})
}

// A table of the version before there were names: nothing is accepted before Migrate, and its marks follow no lock. A program of
// that version goes by the tokens alone and keeps the name.
func TestMarks_tableWithoutNames(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		r.toEarlier(t)
		r.must(t, "ALTER TABLE leasefence_marks ADD COLUMN read_token BIGINT NOT NULL DEFAULT 0")
		require.NoError(t, r.earlierWrite(as(t, older), older))
		for _, v := range verbs() {
			err := v.call(r, v.context(t, "accounts", newer))
			require.ErrorIs(t, err, sqlfence.ErrNoTable)
			require.ErrorContains(t, err, "lock_name")
		}
		require.NoError(t, r.migrate(t.Context()))
		require.Equal(t, content{int64(older), 0, ""}, r.content(t))
		require.NoError(t, r.claim(of(t, "accounts", older), resource))
		require.NoError(t, r.earlierWrite(as(t, newer), newer))
		require.Equal(t, content{int64(newer), 0, "accounts"}, r.content(t))
		require.ErrorIs(t, r.increment(of(t, "accounts", older), do, nowhere), fence.ErrStale)
		require.NoError(t, r.increment(of(t, "accounts", newer), do, nowhere))
		require.EqualValues(t, 3, r.row(t).n)
	})
}
