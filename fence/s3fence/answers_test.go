package s3fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// newBucket returns a Bucket whose requests go through trip.
func newBucket(t *testing.T, trip tripper, opts s3fence.Options) *s3fence.Bucket {
	t.Helper()
	opts.Backoff = time.Millisecond
	b, err := s3fence.NewBucket(newClient(trip), "data", opts)
	require.NoError(t, err)
	return b
}

// What Put reports for each answer of the endpoint or error of the network. A write that was never sent was not done.
func TestBucket_Put_answers(t *testing.T) {
	const always = 1 << 40
	for name, tt := range map[string]struct {
		err    error // instead of an answer
		status int
		code   string
		done   bool  // the write is done before this answer
		times  int   // the number of writes that get this answer
		unread bool  // after it nothing can be read
		ends   bool  // the context ends meanwhile
		want   error // nil: success
	}{
		"no connection":                {err: &net.OpError{Op: "dial", Err: errReset}, times: always, want: s3fence.ErrContended},
		"connection lost":              {err: &net.OpError{Op: "read", Err: errReset}, times: always, want: s3fence.ErrUnknown},
		"conflict, once":               {status: 409, code: "ConditionalRequestConflict", times: 1},
		"conflict, always":             {status: 409, code: "ConditionalRequestConflict", times: always, want: s3fence.ErrContended},
		"slow down, done":              {status: 503, code: "SlowDown", done: true, times: always},
		"slow down, not done":          {status: 503, code: "SlowDown", times: 1},
		"slow down, always":            {status: 503, code: "SlowDown", times: always, want: s3fence.ErrUnknown},
		"body too slow, once":          {status: 400, code: "RequestTimeout", times: 1},
		"too many requests, always":    {status: 429, code: "TooManyRequests", times: always, want: s3fence.ErrContended},
		"412 to a copy of the request": {status: 412, code: "PreconditionFailed", done: true, times: 1},
		"deleted meanwhile":            {status: 404, code: "NoSuchKey", times: 1},
		"no bucket":                    {status: 404, code: "NoSuchBucket", times: 1, want: errRefused},
		"forbidden":                    {status: 403, code: "AccessDenied", times: 1, want: errRefused},
		"no conditional writes":        {status: 501, code: "NotImplemented", times: 1, want: errRefused},

		"connection lost, then forbidden":     {err: errReset, done: true, times: 1, unread: true, want: s3fence.ErrUnknown},
		"connection lost, then ended":         {err: errReset, done: true, times: 1, unread: true, ends: true, want: s3fence.ErrUnknown},
		"412 to a copy, and then forbidden":   {status: 412, code: "PreconditionFailed", done: true, times: 1, unread: true, want: s3fence.ErrUnknown},
		"412 to a copy, and then it is ended": {status: 412, code: "PreconditionFailed", done: true, times: 1, unread: true, ends: true, want: s3fence.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store memory
				var writes int
				ctx, end := context.WithCancelCause(fence.NewContext(t.Context(), 54))
				defer end(nil)
				b := newBucket(t, func(r *http.Request) (*http.Response, error) {
					if r.Method != http.MethodPut {
						if writes > 0 && tt.unread {
							return reply(r, http.StatusForbidden, "", []byte("<Error><Code>AccessDenied</Code></Error>")), nil
						}
						return store.RoundTrip(r)
					}
					if writes++; writes > tt.times {
						return store.RoundTrip(r)
					}
					if tt.ends {
						end(errEnded)
					}
					if tt.done {
						if _, err := store.RoundTrip(r); err != nil {
							return nil, err
						}
					}
					if tt.err != nil {
						return nil, tt.err
					}
					return reply(r, tt.status, "", []byte("<Error><Code>"+tt.code+"</Code></Error>")), nil
				}, s3fence.Options{Attempts: 70})
				err := b.Put(ctx, "key", []byte("54"))
				if tt.want == nil {
					require.NoError(t, err)
					require.Equal(t, "54", payload(t, b, "key"))
					return
				}
				require.ErrorContains(t, err, `s3fence: put "data/key": `)
				for _, other := range []error{s3fence.ErrContended, s3fence.ErrUnknown, fence.ErrStale} {
					require.Equal(t, errors.Is(tt.want, other), errors.Is(err, other))
				}
				if errors.Is(tt.want, errRefused) {
					require.ErrorContains(t, err, tt.code)
				}
				if tt.ends {
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, errEnded, "the cause")
				}
				sent := min(tt.times, 70) // Attempts bounds the writes, and one that is refused or unknown is not sent again
				require.Equal(t, sent, writes)
				require.Equal(t, tt.done, len(store.objects) > 0)
			})
		})
	}
}

var (
	errRefused = errors.New("an error of the endpoint that matches none of the package's")
	errReset   = errors.New("reset")
	errEnded   = errors.New("the lock is lost")
)

// An object without an envelope is neither read nor overwritten.
func TestBucket_foreignObject(t *testing.T) {
	for _, body := range []string{"", "hello", strings.Repeat("x", 1000)} {
		store := memory{objects: map[string][]byte{"/data/key": []byte(body)}}
		b := newBucket(t, store.RoundTrip, s3fence.Options{})
		for name, v := range verbs(b) {
			require.ErrorIs(t, v.Call(v.Context(t.Context(), 41, "accounts"), "key"), s3fence.ErrMalformed, name)
		}
		_, err := b.Get(t.Context(), "key")
		require.ErrorIs(t, err, s3fence.ErrMalformed)
		require.Zero(t, store.sent[http.MethodPut])
	}
}

// An object that is not there refuses nobody. One that was claimed and never written has a mark and no payload.
func TestBucket_Get_noObject(t *testing.T) {
	var store memory
	b := newBucket(t, store.RoundTrip, s3fence.Options{})
	for _, verb := range []string{"Check", "ClaimRead", "Claim"} {
		v := verbs(b)[verb]
		require.NoError(t, v.Call(v.Context(t.Context(), 41), "key"))
		_, err := b.Get(t.Context(), "key")
		require.ErrorIs(t, err, s3fence.ErrNoObject, verb)
	}
}

// If the function of Update fails, nothing is written, and its error is not a refusal by the object. If it panics, no
// hook is called: they are for a function that has returned.
func TestBucket_Update_failure(t *testing.T) {
	told := make(fencetest.Told, 9)
	var store memory
	b := newBucket(t, store.RoundTrip, s3fence.Options{Hooks: told.Hooks()})
	require.PanicsWithValue(t, "bug", func() {
		_ = b.Update(fence.NewContext(t.Context(), 54), "key", func([]byte) ([]byte, error) { panic("bug") })
	})
	_, err := told.Last()
	require.ErrorContains(t, err, "0 times")
	elsewhere := fmt.Errorf("elsewhere: %w", fence.ErrStale)
	err = b.Update(fence.NewContext(t.Context(), 54), "key", func([]byte) ([]byte, error) { return []byte("new"), elsewhere })
	require.ErrorIs(t, err, elsewhere)
	require.ErrorContains(t, err, `s3fence: update "data/key"`)
	got, err := told.Last()
	require.NoError(t, err)
	require.Equal(t, fencetest.Event{Access: fence.Access{Resource: "data/key", Token: 54}}, got)
	require.Zero(t, store.sent[http.MethodPut])
}

// If the context ends before anything is sent, the write was not done, so the outcome is not unknown.
func TestBucket_Update_contextEndsInFn(t *testing.T) {
	var store memory
	b := newBucket(t, store.RoundTrip, s3fence.Options{})
	ctx, cancel := context.WithCancel(fence.NewContext(t.Context(), 54))
	err := b.Update(ctx, "key", func([]byte) ([]byte, error) { cancel(); return nil, nil })
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, s3fence.ErrUnknown)
	require.Zero(t, store.sent[http.MethodPut])
}

// Claim and Update neither read nor overwrite a payload above Options.MaxSize. Put does not read the payload.
func TestBucket_maxSize(t *testing.T) {
	var store memory
	ctx := fence.NewContext(t.Context(), 54)
	require.NoError(t, newBucket(t, store.RoundTrip, s3fence.Options{}).Put(ctx, "key", make([]byte, 1<<20)))
	var answered int64
	small := newBucket(t, func(r *http.Request) (*http.Response, error) {
		resp, err := store.RoundTrip(r)
		answered += resp.ContentLength
		return resp, err
	}, s3fence.Options{MaxSize: 10})
	_, err := small.Get(ctx, "key")
	require.ErrorContains(t, err, "more than Options.MaxSize, 10 bytes")
	require.ErrorContains(t, small.Claim(ctx, "key"), "more than Options.MaxSize, 10 bytes")
	grow := func([]byte) ([]byte, error) { return make([]byte, 11), nil }
	require.ErrorContains(t, small.Update(ctx, "other", grow), "payload has 11 bytes, want at most Options.MaxSize, 10")
	answered = 0
	require.NoError(t, small.Put(ctx, "key", make([]byte, 10)))
	require.LessOrEqual(t, answered, int64(7<<10), "it reads the mark alone")
	_, err = small.Get(ctx, "key")
	require.NoError(t, err)
}

// An endpoint returns a new content with an old ETag, as a gateway to a file system may: the content's token counts.
func TestBucket_Put_newerContentWithOldETag(t *testing.T) {
	var store memory
	direct := newBucket(t, store.RoundTrip, s3fence.Options{})
	require.NoError(t, direct.Put(fence.NewContext(t.Context(), 40), "key", nil))
	base, err := direct.Get(t.Context(), "key")
	require.NoError(t, err)
	var writes int
	b := newBucket(t, func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			writes++
			if err := direct.Claim(fence.NewContext(t.Context(), 54), "key"); err != nil {
				return nil, err
			}
		}
		resp, err := store.RoundTrip(r)
		if err == nil && r.Method == http.MethodGet {
			resp.Header.Set("ETag", base.ETag)
		}
		return resp, err
	}, s3fence.Options{})
	err = b.Put(fence.NewContext(t.Context(), 41), "key", nil)
	require.Equal(t, &fence.StaleError{Resource: "data/key", Token: 41, Highest: 54}, err)
	require.Equal(t, 1, writes)
}

// A content that breaks off is not taken for the whole.
func TestBucket_readBreaksOff(t *testing.T) {
	var store memory
	require.NoError(t, newBucket(t, store.RoundTrip, s3fence.Options{}).Put(fence.NewContext(t.Context(), 40), "key", []byte("base")))
	before := store.objects["/data/key"]
	b := newBucket(t, func(r *http.Request) (*http.Response, error) {
		resp, err := store.RoundTrip(r)
		if r.Method == http.MethodGet {
			resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, int64(len(before)-1)), iotest.ErrReader(errReset)))
		}
		return resp, err
	}, s3fence.Options{})
	require.ErrorIs(t, b.Claim(fence.NewContext(t.Context(), 54), "key"), errReset)
	require.Equal(t, before, store.objects["/data/key"])
}

// Without a strong ETag a write has no condition, so it is refused.
func TestBucket_needsAStrongETag(t *testing.T) {
	for _, tag := range []string{"", `W/"1"`} {
		b := newBucket(t, func(r *http.Request) (*http.Response, error) {
			return reply(r, http.StatusOK, tag, nil), nil
		}, s3fence.Options{})
		require.ErrorContains(t, b.Put(fence.NewContext(t.Context(), 54), "key", nil), "want a strong one")
	}
}
