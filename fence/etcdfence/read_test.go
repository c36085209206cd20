package etcdfence_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func reading(t *testing.T, token fence.ReadToken) context.Context {
	t.Helper()
	return fence.NewReadContext(t.Context(), token)
}

// value is a mark's as it is stored; 0 is none.
func value(write, read int64) string {
	switch {
	case read != 0:
		return fmt.Sprintf("%020d %020d", write, read)
	case write != 0:
		return fmt.Sprintf("%020d", write)
	default:
		return ""
	}
}

// What a verb makes of the marks that it finds, and how many requests it sends.
func TestMarks_readers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			write, read int64 // before; 0 is none
			verb        string
			token       int64
			after       string
			requests    int
			refused     *fence.StaleError
		}{
			{0, 0, "ClaimRead", 54, value(0, 54), 2, nil},
			{0, 54, "ClaimRead", 54, value(0, 54), 1, nil},
			{0, 54, "ClaimRead", 41, value(0, 54), 1, nil},
			{0, 54, "ClaimRead", 60, value(0, 60), 2, nil},
			{41, 0, "ClaimRead", 54, value(41, 54), 2, nil},
			{41, 54, "ClaimRead", 54, value(41, 54), 1, nil},
			{41, 54, "ClaimRead", 50, value(41, 54), 1, nil},
			{41, 54, "ClaimRead", 60, value(41, 60), 2, nil},
			{54, 0, "ClaimRead", 54, value(54, 0), 1, nil},
			{54, 0, "ClaimRead", 41, value(54, 0), 1, &fence.StaleError{Highest: 54, Read: true}},
			{54, 60, "ClaimRead", 41, value(54, 60), 1, &fence.StaleError{Highest: 54, Read: true}},

			{0, 54, "Claim", 41, value(0, 54), 1, &fence.StaleError{Highest: 54, ByReader: true}},
			{41, 54, "Claim", 41, value(41, 54), 1, &fence.StaleError{Highest: 54, ByReader: true}},
			{50, 54, "Claim", 41, value(50, 54), 1, &fence.StaleError{Highest: 50}},
			{0, 54, "Claim", 54, value(54, 0), 2, nil},
			{41, 54, "Claim", 60, value(60, 0), 2, nil},
			{41, 54, "Check", 41, value(41, 54), 1, &fence.StaleError{Highest: 54, ByReader: true}},
			{41, 54, "Check", 60, value(41, 54), 1, nil},
		} {
			srv, c := start(t)
			if before := value(tt.write, tt.read); before != "" {
				srv.Put("fence/r", before)
			}
			m := newMarks(t, c)
			verbs := map[string]func(ctx context.Context, resource string) error{
				"Claim": m.Claim, "Check": m.Check, "ClaimRead": m.ClaimRead, "CheckRead": m.CheckRead,
			}
			call := func(verb string) {
				name, rev, sent := fmt.Sprintf("%s %+v", verb, tt), srv.Rev(), len(c.Calls(fakeetcd.Any))
				ctx := with(t, fence.Token(tt.token))
				if verb == "ClaimRead" || verb == "CheckRead" {
					ctx = reading(t, fence.ReadToken(tt.token))
				}
				err := verbs[verb](ctx, "r")
				if tt.refused != nil {
					want := *tt.refused
					want.Resource, want.Token = "r", fence.Token(tt.token)
					requireStale(t, err, want)
				} else {
					require.NoError(t, err, name)
				}
				require.Equal(t, tt.after, contents(srv, "")["fence/r"], name)
				require.Len(t, c.Calls(fakeetcd.Any), sent+tt.requests, name)
				require.EqualValues(t, tt.requests-1, srv.Rev()-rev, "%s: nothing is written for nothing", name)
			}
			if tt.verb != "ClaimRead" {
				call(tt.verb)
				continue
			}
			call("ClaimRead")
			srv.Delete("fence/r")
			if before := value(tt.write, tt.read); before != "" {
				srv.Put("fence/r", before)
			}
			call("CheckRead")
		}
	})
}

// Every way to write, by a writer that a reader has come after, and by the next one.
func TestMarks_KV_writesAfterAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m, kv := newMarks(t, c), markKV(t, c, "r")
		old := fence.Token(41)
		for name, write := range writes {
			require.NoError(t, write(with(t, old), kv, "d", name))
			reader := old + 5
			require.NoError(t, m.ClaimRead(reading(t, fence.ReadToken(reader)), "r"))
			srv.Put("d", "before")
			rev := srv.Rev()
			requireStale(t, write(with(t, old), kv, "d", "stale"),
				fence.StaleError{Resource: "r", Token: old, Highest: reader, ByReader: true})
			require.Equal(t, rev, srv.Rev(), name)
			old += 10
			require.NoError(t, write(with(t, old), kv, "d", name))
			require.NotContains(t, contents(srv, "d"), "before", name)
			requireStale(t, m.CheckRead(reading(t, fence.ReadToken(reader)), "r"),
				fence.StaleError{Resource: "r", Token: reader, Highest: old, Read: true})
		}
	})
}

// Whatever comes between the two requests of a claim to read is seen by the second: the read mark is the highest of all readers,
// and no writer's mark is lowered.
func TestMarks_ClaimRead_interleaved(t *testing.T) {
	for name, tt := range map[string]struct {
		before, between, after string
		stale                  bool
		requests               int
	}{
		"nothing":         {value(7, 0), "", value(7, 41), false, 2},
		"the first mark":  {"", value(7, 0), value(7, 41), false, 3},
		"an older reader": {value(7, 0), value(7, 20), value(7, 41), false, 3},
		"a newer reader":  {value(7, 0), value(7, 54), value(7, 54), false, 2},
		"an older writer": {value(7, 0), value(20, 0), value(20, 41), false, 3},
		"a newer writer":  {value(7, 0), value(54, 0), value(54, 0), true, 2},
		"a malformed one": {value(7, 0), "7", "7", true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				if tt.before != "" {
					srv.Put("fence/r", tt.before)
				}
				hold := make(chan struct{})
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold})
				done, m, ctx := make(chan error), newMarks(t, c), reading(t, 41)
				go func() { done <- m.ClaimRead(ctx, "r") }()
				synctest.Wait()
				require.Len(t, c.Calls(fakeetcd.Txn), 1)
				if tt.between != "" {
					srv.Put("fence/r", tt.between)
				}
				close(hold)
				err := <-done
				require.Equal(t, tt.stale, err != nil, "%v", err)
				require.Len(t, c.Calls(fakeetcd.Any), tt.requests)
				require.Equal(t, map[string]string{"fence/r": tt.after}, contents(srv, ""))
			})
		})
	}
}

// A write that arrives after a reader has claimed. So does a late claim to read: it lowers nothing.
func TestMarks_ClaimRead_late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, claimed := range map[string]bool{"its holder has claimed": true, "a write that raises the mark": false} {
			srv, c := start(t)
			paused, m := srv.NewClient(t.Context()), newMarks(t, c)
			if claimed {
				require.NoError(t, m.Claim(with(t, 41), "r"))
			}
			hold, sent := make(chan struct{}), 0
			paused.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Late: true, Match: func(fakeetcd.Call) bool {
				sent++
				return claimed || sent == 2
			}})
			ctx, cancel := contextWithTimeout(t, time.Second)
			err := second(markKV(t, paused, "r").Put(fence.NewContext(ctx, 41), "d", "late"))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NoError(t, m.ClaimRead(reading(t, 54), "r"))
			close(hold)
			synctest.Wait()
			require.Empty(t, contents(srv, "d"), name)

			hold = make(chan struct{})
			paused.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Late: true})
			ctx, cancel = contextWithTimeout(t, time.Second)
			err = newMarks(t, paused).ClaimRead(fence.NewReadContext(ctx, 60), "r")
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NoError(t, m.Claim(with(t, 70), "r"))
			close(hold)
			synctest.Wait()
			require.Equal(t, map[string]string{"fence/r": value(70, 0)}, contents(srv, ""), name)
		}
	})
}

// A lost message is told as it is, and the same call again is safe, whether the mark was raised or not.
func TestMarks_ClaimRead_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
			srv, c := start(t)
			m := newMarks(t, c)
			c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: lost, Err: fakeetcd.ErrUnavailable, Times: 1})
			err := m.ClaimRead(reading(t, 54), "r")
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.Len(t, c.Calls(fakeetcd.Txn), 1, "not sent again")
			require.Equal(t, lost == fakeetcd.Answer, len(contents(srv, "")) == 1)
			require.NoError(t, m.ClaimRead(reading(t, 54), "r"))
			require.Equal(t, map[string]string{"fence/r": value(0, 54)}, contents(srv, ""))
		}
	})
}

// A reader's context has no token for what writes, and a writer's none for what reads.
func TestMarks_tokenOfTheOtherMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m, kv := newMarks(t, c), markKV(t, c, "r")
		ctx := fence.NewReadContext(with(t, 41), 54) // under a lock
		for _, err := range []error{m.Claim(ctx, "r"), m.Check(ctx, "r"), second(kv.Put(ctx, "d", "")), second(kv.Txn(ctx).Commit())} {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, `token for "r": fence: invalid token: the context carries a reader's, want the context of a lock`)
		}
		for ctx, want := range map[context.Context]string{
			t.Context():        "none",
			with(t, 41):        "a writer's",
			reading(t, 1<<48):  "none",
			reading(t, 0):      "none",
			reading(t, -1<<40): "none",
		} {
			for _, err := range []error{m.ClaimRead(ctx, "r"), m.CheckRead(ctx, "r")} {
				require.ErrorIs(t, err, fence.ErrInvalidToken)
				require.ErrorContains(t, err, "the context carries "+want+", want the context of a read lock")
			}
		}
		require.ErrorContains(t, m.ClaimRead(reading(t, 54), ""), "resource is empty")
		strict, err := etcdfence.NewMarks(c, etcdfence.Options{})
		require.NoError(t, err)
		err = strict.ClaimRead(reading(t, 16<<48|54), "r")
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, "its era is 16, want 0 to 15")
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")
	})
}

// A refused write tells that readers hold the lock now.
func TestNewKV_tellsThePresentReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		granted, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		reader := enter(t, c.Client, fmt.Sprintf("locks/a/r%x-0", int64(granted.ID)), granted.ID)
		contend(t, c.Client, "locks/a")
		srv.Delete(key)
		requireStale(t, second(newKV(t, c, h).Put(t.Context(), "d", "")),
			fence.StaleError{Resource: key, Token: h.token, Highest: reader.token, ByReader: true})
	})
}

// A read lock opens no way to write.
func TestNewKV_takesNoReadLock(t *testing.T) {
	_, is := any((*lease.ReadLock)(nil)).(etcdfence.Holder)
	require.False(t, is)
}
