package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

const (
	access, secret = "access", "secretsecret"
	region         = "us-east-1"

	// patience bounds the wait for the server; it is far longer than its start takes.
	patience = time.Minute
)

// socket is that of the gateway, which all tests share.
var socket string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	// Not a test's folder: the server outlives the tests, and a socket's path has to be short.
	dir, err := os.MkdirTemp("", "s3fence")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket = filepath.Join(dir, "s3")
	stop, err := serve(filepath.Join(dir, "data"))
	if err != nil {
		return 1, err
	}
	code = m.Run()
	if err = stop(); err == nil && code == 0 {
		// The gateway's library never ends these.
		err = goleak.Find(goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
	}
	return code, err
}

func dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// newTransport returns a transport that connects to the gateway, whatever the address.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: 64,
	}
}

// serve starts a versitygw. It returns when that answers.
func serve(data string) (stop func() error, err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	if err := new(meta.XattrMeta).Test(data); err != nil {
		return nil, fmt.Errorf("the folder for temporary files has no extended attributes: %w", err)
	}
	backend, err := posix.New(data, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 256})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
			RootUserAccess: access, RootUserSecret: secret, Region: region,
			Ports: []string{socket}, MaxConnections: 4096, MaxRequests: 4096, MultipartMaxParts: 10000,
			Quiet: true, KeepAlive: true,
		})
	}()
	stop = func() error { cancel(); return <-ended }
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range patience / (10 * time.Millisecond) {
		select {
		case <-ticker.C:
		case err := <-ended:
			return nil, err
		}
		if conn, err := dial(ctx); err == nil {
			return stop, conn.Close()
		}
	}
	return nil, errors.Join(errors.New("the server does not answer"), stop())
}

// line is a client's connection to the server. Before and after each request it calls drop; an error drops the request,
// or its answer.
type line struct {
	*http.Transport
	drop func(*http.Request) error
}

func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.drop(r); err != nil {
		return nil, err
	}
	resp, err := l.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := l.drop(r); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// newClient returns a client of the server.
func newClient(t *testing.T, drop func(*http.Request) error) *s3.Client {
	t.Helper()
	transport := newTransport()
	t.Cleanup(transport.CloseIdleConnections)
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://server"), Region: region, UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: access, SecretAccessKey: secret}, nil
		}),
		HTTPClient: &http.Client{Transport: line{transport, drop}},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxBackoff, o.RateLimiter = time.Millisecond, ratelimit.None
		}),
	})
}

func reliable(*http.Request) error { return nil }

// serial numbers the buckets.
var serial atomic.Int64

// makeBucket makes a bucket on the server and returns its name.
func makeBucket(t *testing.T, c *s3.Client) string {
	t.Helper()
	name := "b-" + strconv.FormatInt(serial.Add(1), 10)
	_, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name})
	require.NoError(t, err)
	return name
}

func open(t *testing.T, c *s3.Client, name string) *s3fence.Bucket {
	t.Helper()
	b, err := s3fence.NewBucket(c, name, s3fence.Options{Attempts: 100, Backoff: time.Millisecond})
	require.NoError(t, err)
	return b
}

var errDropped = errors.New("dropped")

// Holders overlap at one object, requests and answers are dropped and calls are cancelled at random. Once a holder's
// Update is done, its earlier write with an unknown outcome can no longer be done: Update settles unknown outcomes.
func TestBucket_random(t *testing.T) {
	c := newClient(t, reliable)
	name := makeBucket(t, c)
	direct := open(t, c, name)
	var lossy []*s3fence.Bucket
	for range 4 {
		lossy = append(lossy, open(t, newClient(t, func(r *http.Request) error {
			if r.Method == http.MethodPut && rand.IntN(20) == 0 || rand.IntN(200) == 0 {
				return errDropped
			}
			return nil
		}), name))
	}
	any4 := func() *s3fence.Bucket { return lossy[rand.IntN(len(lossy))] }
	fencetest.Random(t, fencetest.Store{
		Ordered: true, Unknown: s3fence.ErrUnknown,
		Forms: []fencetest.Form{{
			Name: "Update", Alone: "one step", Settles: true,
			Write: func(ctx context.Context, key string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
				return any4().Update(ctx, key, func(old []byte) ([]byte, error) {
					seen, err := fencetest.Entries(string(old))
					saw(seen)
					return fmt.Appendln(old, e), err
				})
			},
		}},
		Claims: []func(context.Context, string) error{func(ctx context.Context, key string) error { return any4().Claim(ctx, key) }},
		Entries: func(ctx context.Context, key string) ([]fencetest.Entry, error) {
			if err := direct.Claim(ctx, key); err != nil {
				return nil, err
			}
			o, err := direct.Get(ctx, key)
			if errors.Is(err, s3fence.ErrNoObject) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return fencetest.Entries(string(o.Payload))
		},
		Again: func(err error) bool { return !errors.Is(err, s3fence.ErrMalformed) }, // any other can come from the lines
	})
}

func TestBucket_Probe(t *testing.T) {
	c := newClient(t, reliable)
	name := makeBucket(t, c)
	require.NoError(t, open(t, c, name).Probe(t.Context()))
	left, err := c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &name})
	require.NoError(t, err)
	require.Empty(t, left.Contents, "the probe left something behind")
}

// A reader's claim keeps a large payload beside the longest name of a lock, and Options.MaxSize counts only the payload.
func TestBucket_Claim(t *testing.T) {
	c := newClient(t, reliable)
	b, err := s3fence.NewBucket(c, makeBucket(t, c), s3fence.Options{MaxSize: 1 << 20})
	require.NoError(t, err)
	const key = "a/key"
	payload, lock := bytes.Repeat([]byte("x\n"), 1<<19), strings.Repeat("é", fence.MaxLock/2)
	holder := fencetest.Verb{}.Context(t.Context(), 41, lock)
	require.NoError(t, b.Claim(holder, key))
	require.NoError(t, b.Put(holder, key, payload))
	require.NoError(t, b.ClaimRead(fencetest.Verb{Reads: true}.Context(t.Context(), 54, lock), key))
	require.ErrorIs(t, b.Check(holder, key), fence.ErrStale)
	got, err := b.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, s3fence.Object{Payload: payload, Token: 41, Lock: lock, ETag: got.ETag}, got)
}

// Put stands in for a Check that raises the mark, since that of a Bucket raises none.
func TestBucket_grants(t *testing.T) {
	c := newClient(t, reliable)
	b := open(t, c, makeBucket(t, c))
	put := func(ctx context.Context, key string) error { return b.Put(ctx, key, nil) }
	fencetest.Grants(t, fencetest.VerbsOf(b.Claim, put, nil, b.ClaimRead, b.CheckRead), "Check")
}
