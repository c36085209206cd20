package integration_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// proxy stands between one client and the server.
type proxy struct {
	client *s3.Client
	*s3fence.Bucket
	// before runs before a request is passed on; an error drops the connection and the request.
	before atomic.Pointer[func(*http.Request) error]
	// after runs when the server has answered; an error drops the connection and the answer.
	after atomic.Pointer[func(*http.Request, *http.Response) error]
}

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: access, SecretAccessKey: secret}, nil
})

// newProxy returns a proxy to the server, with a client and a Bucket that use it, for a new bucket if bucket is "". A
// through that is not nil wraps the transport.
func newProxy(tb testing.TB, bucket string, through func(http.RoundTripper) http.RoundTripper) *proxy {
	tb.Helper()
	p := new(proxy)
	transport := server.transport()
	var trip http.RoundTripper = transport
	if through != nil {
		trip = through(trip)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "server"
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: tripper(func(r *http.Request) (*http.Response, error) {
			if before := p.before.Load(); before != nil {
				if err := (*before)(r); err != nil {
					return nil, err
				}
			}
			return trip.RoundTrip(r)
		}),
		ModifyResponse: func(resp *http.Response) error {
			if after := p.after.Load(); after != nil {
				return (*after)(resp.Request, resp)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	own := &http.Transport{MaxIdleConnsPerHost: 64}
	tb.Cleanup(func() {
		own.CloseIdleConnections()
		front.Close()
		transport.CloseIdleConnections()
	})
	p.client = s3.New(s3.Options{
		BaseEndpoint: &front.URL, Region: region, Credentials: credentials, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: own},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxBackoff, o.RateLimiter = time.Millisecond, ratelimit.None
		}),
	})
	if bucket == "" {
		serial.Add(1)
		bucket = lastBucket()
		_, err := p.client.CreateBucket(tb.Context(), &s3.CreateBucketInput{Bucket: &bucket})
		require.NoError(tb, err)
	}
	var err error
	p.Bucket, err = s3fence.NewBucket(p.client, bucket, s3fence.Options{Attempts: 100, Backoff: time.Millisecond})
	require.NoError(tb, err)
	return p
}

// serial numbers the buckets.
var serial atomic.Int64

func lastBucket() string { return "b-" + strconv.FormatInt(serial.Load(), 10) }

// newPair returns two clients of one bucket.
func newPair(tb testing.TB) (older, newer *proxy, bucket string) {
	tb.Helper()
	older = newProxy(tb, "", nil)
	bucket = lastBucket()
	return older, newProxy(tb, bucket, nil), bucket
}

var errDropped = errors.New("dropped")

func (p *proxy) onRequest(f func(*http.Request) error)                { p.before.Store(&f) }
func (p *proxy) onAnswer(f func(*http.Request, *http.Response) error) { p.after.Store(&f) }
func (p *proxy) quiet()                                               { p.before.Store(nil); p.after.Store(nil) }

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// strip removes some headers from requests and signs them again. So it acts like a proxy or a server that does not know
// the headers.
func strip(headers ...string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			for _, h := range headers {
				if r.Header.Get(h) == "" {
					continue
				}
				if err := unconditional(r, h); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(r)
		})
	}
}

// unconditional removes a header from a request and signs the request again.
func unconditional(r *http.Request, header string) error {
	r.Header.Del(header)
	return sign(r)
}

func sign(r *http.Request) error {
	r.Header.Del("Authorization")
	c, err := credentials.Retrieve(r.Context())
	if err != nil {
		return err
	}
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).SignHTTP(
		r.Context(), c, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", region, time.Now())
}

// holding returns a context that carries a token.
func holding(tb testing.TB, token fence.Token) context.Context {
	tb.Helper()
	return fence.NewContext(tb.Context(), token)
}

// reading returns a context that carries a reader's token.
func reading(tb testing.TB, token fence.Token) context.Context {
	tb.Helper()
	return fence.NewReadContext(tb.Context(), fence.ReadToken(token))
}

// get returns the payload and the token of an object.
func get(tb testing.TB, p *proxy, key string) (string, fence.Token) {
	tb.Helper()
	o, err := p.Get(tb.Context(), key)
	require.NoError(tb, err)
	return string(o.Payload), o.Token
}
