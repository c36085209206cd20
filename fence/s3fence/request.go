package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// reading is an object at one instant.
type reading struct {
	header
	payload []byte
	etag    string
}

// absent is the reading of a missing object.
var absent = reading{header: header{id: noID}}

// read reads a whole object. A missing object is not an error.
func (b *Bucket) read(ctx context.Context, key string) (reading, error) {
	r, err := parse(b.fetch(ctx, key, "", headerLimit+b.opts.MaxSize+1))
	if int64(len(r.payload)) > b.opts.MaxSize {
		return absent, fmt.Errorf("the object has more than Options.MaxSize, %d bytes", b.opts.MaxSize)
	}
	return r, err
}

// readHeader reads an object without its payload.
func (b *Bucket) readHeader(ctx context.Context, key string) (reading, error) {
	r, err := parse(b.fetch(ctx, key, fmt.Sprintf("bytes=0-%d", headerLimit-1), headerLimit))
	r.payload = nil // it may be cut off
	return r, err
}

// parse makes a reading of what fetch returns.
func parse(body []byte, etag string, err error) (reading, error) {
	if err != nil || etag == "" {
		return absent, err
	}
	h, payload, err := open(body)
	if err != nil {
		return absent, err
	}
	return reading{header: h, payload: payload, etag: etag}, nil
}

// fetch reads at most limit bytes of an object, and its ETag, which is empty if the object is missing. Reads may be
// repeated, so the client's own retries stay on.
func (b *Bucket) fetch(ctx context.Context, key, span string, limit int64) ([]byte, string, error) {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	if span != "" {
		in.Range = &span
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		switch errorCode(err) {
		case "NoSuchKey":
			return nil, "", nil
		case "InvalidRange": // an empty object has no first byte
			return nil, "", fmt.Errorf("%w: the object is empty", ErrMalformed)
		}
		return nil, "", err
	}
	defer out.Body.Close() //nolint:errcheck // It was only read.
	etag := aws.ToString(out.ETag)
	if etag == "" || strings.HasPrefix(etag, "W/") {
		return nil, "", fmt.Errorf("the endpoint returned the ETag %.40q, want a strong one", etag)
	}
	body, err := io.ReadAll(io.LimitReader(out.Body, limit))
	if err != nil {
		return nil, "", err
	}
	return body, etag, nil
}

// putIf writes an object if its ETag equals etag or, with an empty etag, if the object is missing. It sends one
// request: the endpoint would answer a retry by the SDK with 412 because of the attempt before.
func (b *Bucket) putIf(ctx context.Context, key, etag string, body []byte) (string, error) {
	in := &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: bytes.NewReader(body)}
	if etag == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &etag
	}
	out, err := b.client.PutObject(ctx, in, func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// answer is the outcome of one attempt at a conditional write.
type answer int

const (
	done     answer = iota
	conflict        // not done: the condition was false, or another write was under way
	unsent          // not done: it did not reach the endpoint, or the endpoint deferred it
	refused         // not done, for a reason that a retry does not change
	unclear         // done, not done, or still under way
)

// classify is the complete table of outcomes.
func classify(err error) answer {
	if err == nil {
		return done
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return unsent
	}
	switch status := statusCode(err); status {
	case http.StatusPreconditionFailed, http.StatusConflict:
		return conflict
	case http.StatusNotFound:
		if errorCode(err) == "NoSuchKey" { // If-Match on a deleted object
			return conflict
		}
		return refused
	case http.StatusTooManyRequests:
		return unsent
	case http.StatusNotImplemented: // the endpoint does not support the condition
		return refused
	case http.StatusRequestTimeout:
		return unclear
	default:
		if status >= 400 && status < 500 && errorCode(err) != "RequestTimeout" { // S3 sends this one with 400
			return refused
		}
		return unclear // no status, or one that a proxy may have sent after the write
	}
}

// statusCode returns the HTTP status that err carries, or 0.
func statusCode(err error) int {
	type answered interface {
		error
		HTTPStatusCode() int
	}
	if e, ok := errors.AsType[answered](err); ok {
		return e.HTTPStatusCode()
	}
	return 0
}

// errorCode returns S3's name of the error, or "".
func errorCode(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}
