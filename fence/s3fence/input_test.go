package s3fence_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// silent returns an S3 client that fails the test if anything is sent.
func silent(t *testing.T) *s3.Client {
	t.Helper()
	return newClient(func(*http.Request) (*http.Response, error) {
		t.Error("something was sent")
		return nil, errors.New("something was sent")
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newClient(trip tripper) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://s3.test"), Region: "us-east-1", UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "access", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: &http.Client{Transport: trip},
	})
}

func TestNewBucket_refuses(t *testing.T) {
	client := silent(t)
	for _, tt := range []struct {
		client *s3.Client
		bucket string
		opts   s3fence.Options
		want   string
	}{
		{nil, "data", s3fence.Options{}, "client is nil, want an S3 client"},
		{client, "", s3fence.Options{}, `bucket "" has 0 bytes, want 1 to 255`},
		{client, strings.Repeat("x", 256), s3fence.Options{}, "has 256 bytes, want 1 to 255"},
		{client, "data", s3fence.Options{Attempts: -1}, "Options.Attempts is -1, want 1 to 1000"},
		{client, "data", s3fence.Options{Attempts: 1001}, "Options.Attempts is 1001, want 1 to 1000"},
		{client, "data", s3fence.Options{Backoff: -1}, "Options.Backoff is -1ns, want 1ms to 10s"},
		{client, "data", s3fence.Options{Backoff: time.Minute}, "Options.Backoff is 1m0s, want 1ms to 10s"},
		{client, "data", s3fence.Options{MaxSize: -1}, "Options.MaxSize is -1, want 1 to 5368701952"},
		{client, "data", s3fence.Options{MaxSize: math.MaxInt64}, "want 1 to 5368701952"},
		{client, "data", s3fence.Options{MaxEra: 32768}, "s3fence: Options.MaxEra is 32768, want 1 to 32767"},
	} {
		b, err := s3fence.NewBucket(tt.client, tt.bucket, tt.opts)
		require.ErrorContains(t, err, tt.want)
		require.Nil(t, b)
	}
}

func TestBucket_refusesBadInput(t *testing.T) {
	b, err := s3fence.NewBucket(silent(t), "data", s3fence.Options{})
	require.NoError(t, err)
	keys := map[string]string{
		"":                        `key "" has 0 bytes, want 1 to 1024`,
		strings.Repeat("k", 1025): "has 1025 bytes, want 1 to 1024",
		"\xff":                    "is not UTF-8",
	}
	fencetest.Refuse(t, verbs(b), keys)
	for key, want := range keys {
		_, err := b.Get(t.Context(), key)
		require.ErrorContains(t, err, want)
	}
	small, err := s3fence.NewBucket(silent(t), "data", s3fence.Options{MaxSize: 10})
	require.NoError(t, err)
	ctx := fence.NewContext(t.Context(), 54)
	require.ErrorContains(t, small.Put(ctx, "key", make([]byte, 11)), "payload has 11 bytes, want at most Options.MaxSize, 10")
	require.ErrorContains(t, b.Update(ctx, "key", nil), "fn is nil, want a function")
}

func TestBucket_zeroIsRefused(t *testing.T) {
	const want = "s3fence: Bucket is nil or zero, want one created by NewBucket"
	for _, b := range []*s3fence.Bucket{nil, {}} {
		for name, v := range verbs(b) {
			require.EqualError(t, v.Call(v.Context(t.Context(), 54, "accounts"), "key"), want, name)
		}
		_, err := b.Get(t.Context(), "key")
		require.EqualError(t, err, want)
		require.EqualError(t, b.Probe(t.Context()), want)
	}
}
