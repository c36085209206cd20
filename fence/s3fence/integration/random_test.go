package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// lossyLines returns proxies of one bucket: the first is reliable, the others drop requests and answers at random.
func lossyLines(t *testing.T) (reliable *proxy, lossy []*proxy) {
	t.Helper()
	reliable = newProxy(t, "", nil)
	drop := func(r *http.Request) error {
		if r.Method == http.MethodPut && rand.IntN(20) == 0 || rand.IntN(200) == 0 {
			return errDropped
		}
		return nil
	}
	for range 4 {
		p := newProxy(t, lastBucket(), nil)
		p.onRequest(drop)
		p.onAnswer(func(r *http.Request, _ *http.Response) error { return drop(r) })
		lossy = append(lossy, p)
	}
	return reliable, lossy
}

// lossyStore returns a store over lossy lines. Any error can come from the lines, except ErrMalformed.
func lossyStore(lossy []*proxy, form fencetest.Form, write func(
	ctx context.Context, p *proxy, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error,
) fencetest.Store {
	line := func() *proxy { return lossy[rand.IntN(len(lossy))] }
	form.Write = func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
		return write(ctx, line(), resource, e, saw)
	}
	return fencetest.Store{
		Locks:   true,
		Unknown: s3fence.ErrUnknown,
		Forms:   []fencetest.Form{form},
		Claims:  []func(context.Context, string) error{func(ctx context.Context, key string) error { return line().Claim(ctx, key) }},
		Again:   func(err error) bool { return !errors.Is(err, s3fence.ErrMalformed) },
	}
}

// Holders overlap at one object, and their calls are cancelled at random. Once a holder's Update is done, its earlier
// write with an unknown outcome can no longer be done: Update settles unknown outcomes.
func TestBucket_random(t *testing.T) {
	reliable, lossy := lossyLines(t)
	s := lossyStore(lossy, fencetest.Form{Name: "Update", Alone: "one step", Settles: true},
		func(ctx context.Context, p *proxy, key string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
			return p.Update(ctx, key, func(old []byte) ([]byte, error) {
				saw(logged(t, strings.Fields(string(old))))
				return fmt.Appendf(old, "%d:%d\n", e.ID, e.Token), nil
			})
		})
	s.Ordered = true
	s.Entries = func(ctx context.Context, key string) ([]fencetest.Entry, error) {
		if err := reliable.Claim(ctx, key); err != nil {
			return nil, err
		}
		o, err := reliable.Get(ctx, key)
		if errors.Is(err, s3fence.ErrNoObject) {
			return nil, nil
		}
		return logged(t, strings.Fields(string(o.Payload))), err
	}
	fencetest.Random(t, s)
}

// logged parses entries of the form "id:token".
func logged(t *testing.T, texts []string) []fencetest.Entry {
	t.Helper()
	all := make([]fencetest.Entry, len(texts))
	for i, text := range texts {
		var token int64
		_, err := fmt.Sscanf(text, "%d:%d", &all[i].ID, &token)
		require.NoError(t, err)
		all[i].Token = fence.Token(token)
	}
	return all
}

// In histories of a read/write lock with readers and writers, nothing stale is accepted and no live holder is refused.
// Put stands in for a Check that raises the mark, since that of a Bucket raises none.
func TestBucket_grants(t *testing.T) {
	told := &fencetest.Told{}
	p := newProxy(t, "", nil)
	b, err := s3fence.NewBucket(p.client, lastBucket(), s3fence.Options{Hooks: told.Hooks()})
	require.NoError(t, err)
	fencetest.Grants(t, fencetest.Verbs{
		Told:  told,
		Claim: b.Claim, ClaimRead: b.ClaimRead, CheckRead: b.CheckRead,
		Check: func(ctx context.Context, key string) error { return b.Put(ctx, key, nil) },
	})
}

// An error that the function of Update returns is not a refusal by the object.
func TestBucket_Update_hooks(t *testing.T) {
	told := &fencetest.Told{}
	p := newProxy(t, "", nil)
	b, err := s3fence.NewBucket(p.client, lastBucket(), s3fence.Options{Hooks: told.Hooks()})
	require.NoError(t, err)
	elsewhere := &fence.StaleError{Resource: "elsewhere", Token: 54}
	require.ErrorIs(t, b.Update(holding(t, 54), "report", func([]byte) ([]byte, error) { return nil, elsewhere }), elsewhere)
	got, err := told.Last()
	require.NoError(t, err)
	require.Equal(t, fencetest.Event{Access: fence.Access{Resource: lastBucket() + "/report", Token: 54}}, got)
}
