package integration_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

func manifest(t *testing.T, p *proxy, key string) *s3fence.Manifest {
	t.Helper()
	m, err := p.Manifest(key)
	require.NoError(t, err)
	return m
}

func files(pairs ...string) map[string][]byte {
	m := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = []byte(pairs[i+1])
	}
	return m
}

func contents(t *testing.T, s *s3fence.Snapshot) map[string]string {
	t.Helper()
	got := map[string]string{}
	for name := range s.Parts {
		payload, err := s.Get(t.Context(), name)
		require.NoError(t, err)
		got[name] = string(payload)
	}
	return got
}

func TestManifest_commits(t *testing.T) {
	p := newProxy(t, "", nil)
	m := manifest(t, p, "table")
	ctx := holding(t, 41)
	empty, err := m.Read(ctx)
	require.NoError(t, err)
	require.Empty(t, empty.Parts)
	require.NoError(t, m.Claim(ctx))

	require.NoError(t, m.Commit(ctx, s3fence.Changes{Put: files("a", "1", "b", "1", "gone", "1")}))
	before, err := m.Read(ctx)
	require.NoError(t, err)
	require.NoError(t, m.Commit(ctx, s3fence.Changes{Put: files("b", "2"), Delete: []string{"gone", "never"}}))
	after, err := m.Read(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, contents(t, after))
	require.Equal(t, map[string]string{"a": "1", "b": "1", "gone": "1"}, contents(t, before), "an older snapshot is unchanged")
	require.Equal(t, fence.Token(41), after.Token)
	_, err = after.Get(ctx, "gone")
	require.ErrorIs(t, err, s3fence.ErrNoObject)

	garbage, err := m.Garbage(ctx)
	require.NoError(t, err)
	require.Empty(t, garbage, "a commit of this tenure may be about to list what it has written")
	require.NoError(t, m.Claim(holding(t, 54)))
	garbage, err = m.Garbage(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{before.Parts["b"].Key, before.Parts["gone"].Key}, garbage)
}

// A holder that is paused before it replaces the manifest changes nothing, and Garbage lists the parts that it wrote.
func TestManifest_holderPausedBeforeTheSwap(t *testing.T) {
	older, newer, _ := newPair(t)
	m := manifest(t, newer, "table")
	require.NoError(t, m.Commit(holding(t, 40), s3fence.Changes{Put: files("a", "base", "b", "base")}))

	there, free := make(chan struct{}), make(chan struct{})
	older.onRequest(func(r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/table") {
			close(there)
			<-free
		}
		return nil
	})
	result := make(chan error, 1)
	late := manifest(t, older, "table")
	go func() {
		result <- late.Commit(holding(t, 41), s3fence.Changes{Put: files("a", "41", "b", "41")})
	}()
	await(t, there, "the older holder did not write the manifest")
	midway, err := m.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "base", "b": "base"}, contents(t, midway))
	require.NoError(t, m.Claim(holding(t, 54)))
	require.NoError(t, m.Commit(holding(t, 54), s3fence.Changes{Put: files("a", "54")}))
	close(free)
	requireStale(t, await(t, result, "the older holder did not return"))

	now, err := m.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "54", "b": "base"}, contents(t, now))
	garbage, err := m.Garbage(t.Context())
	require.NoError(t, err)
	require.Len(t, garbage, 3, "two of the failed commit, and one replaced")
	for _, key := range garbage {
		require.NotEqual(t, now.Parts["a"].Key, key)
		require.NotEqual(t, now.Parts["b"].Key, key)
	}

	// A stale holder uploads nothing.
	older.quiet()
	var puts int
	older.onRequest(func(r *http.Request) error {
		if r.Method == http.MethodPut {
			puts++
		}
		return nil
	})
	requireStale(t, late.Commit(holding(t, 41), s3fence.Changes{Put: files("a", "41")}))
	require.Zero(t, puts)
}

func TestManifest_damage(t *testing.T) {
	p := newProxy(t, "", nil)
	bucket := lastBucket()
	m := manifest(t, p, "table")
	ctx := holding(t, 41)
	require.NoError(t, m.Commit(ctx, s3fence.Changes{Put: files("a", "1", "b", "1")}))
	s, err := m.Read(ctx)
	require.NoError(t, err)
	part := s.Parts["a"]
	_, err = p.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &part.Key, Body: strings.NewReader("2")})
	require.NoError(t, err)
	_, err = s.Get(ctx, "a")
	require.ErrorIs(t, err, s3fence.ErrMalformed)
	part = s.Parts["b"]
	_, err = p.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &part.Key})
	require.NoError(t, err)
	_, err = s.Get(ctx, "b")
	require.ErrorIs(t, err, s3fence.ErrNoObject)

	require.NoError(t, p.Put(ctx, "table", []byte("no manifest")))
	_, err = m.Read(ctx)
	require.ErrorIs(t, err, s3fence.ErrMalformed)
	err = m.Commit(ctx, s3fence.Changes{Put: files("a", "1")})
	require.ErrorIs(t, err, s3fence.ErrMalformed)
	payload, _ := get(t, p, "table")
	require.Equal(t, "no manifest", payload)
}

// On a server: the longest name of a lock, and a Move to another lock, after which Garbage lists parts of the former
// lock's commits.
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
	require.ErrorIs(t, m.Commit(fence.WithLock(holding(t, 54), "accounts"), s3fence.Changes{Delete: []string{"a"}}), fence.ErrOtherLock)

	require.NoError(t, m.Move(fence.WithLock(holding(t, 54), "accounts")))
	require.ErrorIs(t, m.Commit(old(60), s3fence.Changes{Delete: []string{"a"}}), fence.ErrOtherLock)
	require.NoError(t, m.Commit(fence.WithLock(holding(t, 54), "accounts"), s3fence.Changes{Put: files("a", "3")}))
	now, err := m.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "accounts", now.Lock)
	require.Equal(t, map[string]string{"a": "3", "b": "1"}, contents(t, now))
	garbage, err := m.Garbage(t.Context())
	require.NoError(t, err)
	require.Len(t, garbage, 2)
	require.Contains(t, garbage, before.Parts["a"].Key)
}
