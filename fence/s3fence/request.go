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

// reading is what an object was at one instant. Of an object that is not there all but prev is zero.
type reading struct {
	header
	payload []byte
	etag    string
}

// absent is the reading of an object that is not there.
var absent = reading{header: header{id: noID}}

// read reads a whole object; absent is no error.
func (b *Bucket) read(ctx context.Context, key string) (reading, error) {
	body, etag, err := b.fetch(ctx, key, "", headerSize+b.opts.MaxSize+1)
	if err != nil || etag == "" {
		return absent, err
	}
	if int64(len(body)) > headerSize+b.opts.MaxSize {
		return absent, fmt.Errorf("the object has more than Options.MaxSize, %d bytes", b.opts.MaxSize)
	}
	h, payload, err := open(body)
	if err != nil {
		return absent, err
	}
	return reading{header: h, payload: payload, etag: etag}, nil
}

// readHeader reads as read does, but not the payload.
func (b *Bucket) readHeader(ctx context.Context, key string) (reading, error) {
	body, etag, err := b.fetch(ctx, key, fmt.Sprintf("bytes=0-%d", headerSize-1), headerSize)
	if err != nil || etag == "" {
		return absent, err
	}
	h, err := parseHeader(body)
	if err != nil {
		return absent, err
	}
	return reading{header: h, etag: etag}, nil
}

// fetch gets at most limit bytes of an object, and its ETag, which is empty if there is no object. Reads may be
// repeated, so the client's own retries stand.
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
		case "InvalidRange": // nothing else refuses the first bytes
			return nil, "", fmt.Errorf("%w: the object is empty", ErrMalformed)
		}
		return nil, "", err
	}
	defer out.Body.Close() //nolint:errcheck // It was only read.
	etag := aws.ToString(out.ETag)
	if etag == "" || strings.HasPrefix(etag, "W/") {
		return nil, "", fmt.Errorf("the endpoint gave the ETag %.40q, want a strong one", etag)
	}
	body, err := io.ReadAll(io.LimitReader(out.Body, limit))
	if err != nil {
		return nil, "", err
	}
	return body, etag, nil
}

// putIf writes an object if its ETag is the one given, or if it is not there if that is empty. It sends one request:
// a retry by the SDK would be answered 412 because of the attempt before it, and could not tell.
func (b *Bucket) putIf(ctx context.Context, key, etag string, body []byte) (string, error) {
	in := &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: bytes.NewReader(body)}
	if etag == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &etag
	}
	out, err := b.client.PutObject(ctx, in, once)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func once(o *s3.Options) {
	o.Retryer = aws.NopRetryer{}
	o.RetryMaxAttempts = 1
}

// answer is what one attempt at a conditional write has come to.
type answer int

const (
	done     answer = iota
	conflict        // the condition did not hold, or a write was under way: not done
	unsent          // nobody got it: not done
	refused         // for another reason, which will not go away: not done
	unclear         // done or not, or to be done yet
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
		if errorCode(err) == "NoSuchKey" { // If-Match on an object that has been deleted
			return conflict
		}
		return refused
	case http.StatusTooManyRequests:
		return unsent
	case http.StatusRequestTimeout:
		return unclear
	default:
		if status >= 400 && status < 500 {
			return refused
		}
		return unclear // no status, or one that a proxy may have made up after the write
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
