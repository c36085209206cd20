package integration_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// count counts the requests of a client.
func (p *proxy) count() (gets, puts *atomic.Int64) {
	gets, puts = new(atomic.Int64), new(atomic.Int64)
	p.onRequest(func(r *http.Request) error {
		switch r.Method {
		case http.MethodGet:
			gets.Add(1)
		case http.MethodPut:
			puts.Add(1)
		}
		return nil
	})
	return gets, puts
}

// What each verb makes of the marks that it finds, and how many requests it sends.
func TestBucket_readers(t *testing.T) {
	p, other, bucket := newPair(t)
	for i, tt := range []struct {
		write, read fence.Token // before; 0 is none
		verb        string
		token       fence.Token
		afterWrite  fence.Token
		afterRead   fence.Token // 0: none that is above the mark of writers
		gets, puts  int64
		refused     *fence.StaleError
	}{
		{0, 0, "ClaimRead", 54, 0, 54, 1, 1, nil},
		{0, 54, "ClaimRead", 60, 0, 60, 1, 1, nil},
		{41, 0, "ClaimRead", 54, 41, 54, 1, 1, nil},
		{41, 54, "ClaimRead", 54, 41, 54, 1, 0, nil},
		{41, 54, "ClaimRead", 50, 41, 54, 1, 0, nil},
		{41, 54, "ClaimRead", 60, 41, 60, 1, 1, nil},
		{54, 0, "ClaimRead", 54, 54, 0, 1, 0, nil},
		{54, 0, "ClaimRead", 41, 54, 0, 1, 0, &fence.StaleError{Highest: 54, Read: true}},
		{54, 60, "ClaimRead", 41, 54, 60, 1, 0, &fence.StaleError{Highest: 54, Read: true}},

		{0, 0, "CheckRead", 54, 0, 54, 2, 1, nil},
		{41, 0, "CheckRead", 54, 41, 54, 2, 1, nil},
		{41, 54, "CheckRead", 54, 41, 54, 1, 0, nil},
		{41, 54, "CheckRead", 50, 41, 54, 1, 0, nil},
		{54, 60, "CheckRead", 41, 54, 60, 1, 0, &fence.StaleError{Highest: 54, Read: true}},

		{41, 54, "Put", 41, 41, 54, 1, 0, &fence.StaleError{Highest: 54, ByReader: true}},
		{41, 54, "Update", 41, 41, 54, 1, 0, &fence.StaleError{Highest: 54, ByReader: true}},
		{41, 54, "Claim", 41, 41, 54, 1, 0, &fence.StaleError{Highest: 54, ByReader: true}},
		{0, 54, "Claim", 41, 0, 54, 1, 0, &fence.StaleError{Highest: 54, ByReader: true}},
		{50, 54, "Claim", 41, 50, 54, 1, 0, &fence.StaleError{Highest: 50}},
		{41, 54, "Check", 41, 41, 54, 1, 0, &fence.StaleError{Highest: 54, ByReader: true}},
		{41, 54, "Check", 60, 41, 54, 1, 0, nil},
		{41, 54, "Put", 60, 60, 0, 1, 1, nil},
		{41, 54, "Update", 54, 54, 0, 1, 1, nil},
		{41, 54, "Claim", 60, 60, 0, 1, 1, nil},
		{0, 54, "Claim", 60, 60, 0, 1, 1, nil},
	} {
		key := fmt.Sprintf("%d/%s %d at %d and %d", i, tt.verb, tt.token, tt.write, tt.read)
		t.Run(key, func(t *testing.T) {
			if tt.write != 0 {
				require.NoError(t, other.Put(holding(t, tt.write), key, []byte("base")))
			}
			if tt.read != 0 {
				require.NoError(t, other.ClaimRead(reading(t, tt.read), key))
			}
			gets, puts := p.count()
			var err error
			switch tt.verb {
			case "Check":
				err = p.Check(holding(t, tt.token), key)
			case "CheckRead":
				err = p.CheckRead(reading(t, tt.token), key)
			default:
				err = writes[tt.verb].do(t, p, tt.token, key)
			}
			require.Equal(t, []int64{tt.gets, tt.puts}, []int64{gets.Load(), puts.Load()}, "GET and PUT")
			if tt.refused != nil {
				want := *tt.refused
				want.Resource, want.Token = bucket+"/"+key, tt.token
				require.Equal(t, want, *staleError(t, err))
			} else {
				require.NoError(t, err)
			}
			payload, err := p.Get(t.Context(), key)
			switch {
			case tt.write == 0:
				require.ErrorIs(t, err, errNoObject)
			case tt.refused != nil || writes[tt.verb].want == "":
				require.Equal(t, "base", string(payload.Payload))
				require.Equal(t, tt.afterWrite, payload.Token)
			default:
				require.Equal(t, writes[tt.verb].want, string(payload.Payload))
				require.Equal(t, tt.afterWrite, payload.Token)
			}
			requireMarks(t, other, key, tt.afterWrite, tt.afterRead)
		})
	}
}

// requireMarks asks for the marks of an object by tokens that raise nothing.
func requireMarks(t *testing.T, p *proxy, key string, write, read fence.Token) {
	t.Helper()
	if write > 1 {
		require.Equal(t, write, staleError(t, p.Check(holding(t, write-1), key)).Highest)
	}
	if read == 0 {
		require.NoError(t, p.Check(holding(t, write), key), "a read mark that is none")
		return
	}
	stale := staleError(t, p.Check(holding(t, max(write, read-1)), key))
	require.Equal(t, read, stale.Highest)
	require.True(t, stale.ByReader)
	require.NoError(t, p.Check(holding(t, read), key))
}

// A writer that is paused at any step does not write under the feet of the reader that comes next.
func TestBucket_writerPausedAtAStep_readerClaims(t *testing.T) {
	older, newer, _ := newPair(t)
	for verb, write := range writes {
		if verb == "ClaimRead" {
			continue
		}
		for name, s := range steps {
			for _, exists := range []bool{true, false} {
				key := fmt.Sprintf("%s/%s/there is one %t", verb, name, exists)
				t.Run(key, func(t *testing.T) {
					if exists {
						require.NoError(t, newer.Put(holding(t, 40), key, []byte("base")))
					}
					held, release := older.hold(t, s)
					defer older.quiet()
					result := make(chan error, 1)
					go func() { result <- write.do(t, older, 41, key) }()
					await(t, held, "the writer did not come to the step")
					require.NoError(t, newer.ClaimRead(reading(t, 54), key))
					before, beforeErr := newer.Get(t.Context(), key)
					release()
					err := await(t, result, "the writer did not return")
					after, afterErr := newer.Get(t.Context(), key)
					require.Equal(t, before, after, "written under the reader's feet")
					require.Equal(t, beforeErr, afterErr)
					require.NoError(t, newer.CheckRead(reading(t, 54), key))
					if s.method == http.MethodPut && s.answered {
						require.NoError(t, err, "it was done before the claim")
						return
					}
					stale := staleError(t, err)
					require.Equal(t, fence.Token(54), stale.Highest)
					require.True(t, stale.ByReader)
				})
			}
		}
	}
}

// Of readers that claim at the same time the newest mark stays, and whoever needs to write no more does not.
func TestBucket_ClaimRead_concurrent(t *testing.T) {
	for name, tt := range map[string]struct {
		between func(t *testing.T, p *proxy) error
		write   fence.Token
		read    fence.Token
		puts    int64
		stale   bool
	}{
		"a newer reader": {func(t *testing.T, p *proxy) error {
			t.Helper()
			return p.ClaimRead(reading(t, 54), "key")
		}, 40, 54, 1, false},
		"an older reader": {func(t *testing.T, p *proxy) error {
			t.Helper()
			return p.ClaimRead(reading(t, 45), "key")
		}, 40, 50, 2, false},
		"an older writer": {func(t *testing.T, p *proxy) error {
			t.Helper()
			return p.Put(holding(t, 45), "key", []byte("45"))
		}, 45, 50, 2, false},
		"a newer writer": {func(t *testing.T, p *proxy) error {
			t.Helper()
			return p.Put(holding(t, 60), "key", []byte("60"))
		}, 60, 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, other, _ := newPair(t)
			require.NoError(t, other.Put(holding(t, 40), "key", []byte("base")))
			var puts atomic.Int64
			var between error
			p.onRequest(func(r *http.Request) error {
				if r.Method == http.MethodPut && puts.Add(1) == 1 {
					between = tt.between(t, other)
				}
				return nil
			})
			err := p.ClaimRead(reading(t, 50), "key")
			require.NoError(t, between)
			require.Equal(t, tt.stale, err != nil, "%v", err)
			if tt.stale {
				require.True(t, staleError(t, err).Read)
			}
			require.Equal(t, tt.puts, puts.Load())
			requireMarks(t, other, "key", tt.write, tt.read)
		})
	}
}

// A claim keeps what the object has, also where it is large, and Options.MaxSize counts the payload alone.
func TestBucket_ClaimRead_keepsThePayload(t *testing.T) {
	p, _, bucket := newPair(t)
	exact, err := s3fence.NewBucket(p.client, bucket, s3fence.Options{MaxSize: 1 << 20})
	require.NoError(t, err)
	payload := make([]byte, 1<<20)
	payload[1<<19] = 'x'
	require.NoError(t, exact.Put(holding(t, 41), "key", payload))
	require.NoError(t, exact.ClaimRead(reading(t, 54), "key"))
	got, err := exact.Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, payload, got.Payload)
	require.Equal(t, fence.Token(41), got.Token)
	out, err := p.client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: new("key")})
	require.NoError(t, err)
	require.EqualValues(t, 148+1<<20, *out.ContentLength)
}

func TestManifest_readers(t *testing.T) {
	p, other, _ := newPair(t)
	m := manifest(t, p, "table")
	require.NoError(t, m.Commit(holding(t, 41), s3fence.Changes{Put: files("a", "1")}))
	require.NoError(t, manifest(t, other, "table").ClaimRead(reading(t, 54)))
	s, err := m.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, fence.Token(41), s.Token)
	stale := staleError(t, m.Commit(holding(t, 41), s3fence.Changes{Put: files("a", "2")}))
	require.True(t, stale.ByReader)
	require.Equal(t, map[string]string{"a": "1"}, contents(t, s))
	require.NoError(t, m.CheckRead(reading(t, 54)))
	require.NoError(t, m.Commit(holding(t, 60), s3fence.Changes{Put: files("a", "3")}))
	require.True(t, staleError(t, m.CheckRead(reading(t, 54))).Read)
	require.True(t, staleError(t, m.ClaimRead(reading(t, 54))).Read)
}
