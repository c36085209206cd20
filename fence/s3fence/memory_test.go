package s3fence_test

import (
	"bytes"
	"crypto/md5" //nolint:gosec // S3's ETag
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// memory is the part of S3 that the examples and the tests beside the code need. The module integration tests against a
// server.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte // by path
	sent    map[string]int    // requests, by method
	clock   string            // the ETag of all objects; none if empty
}

func (m *memory) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent == nil {
		m.sent = make(map[string]int)
	}
	m.sent[r.Method]++
	old, there := m.objects[r.URL.Path]
	var last int
	_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=0-%d", &last)
	ranged := err == nil
	switch match := r.Header.Get("If-Match"); {
	case r.Method == http.MethodDelete:
		delete(m.objects, r.URL.Path)
		return reply(r, http.StatusNoContent, "", nil), nil
	case r.Method == http.MethodGet && !there:
		return reply(r, http.StatusNotFound, "", []byte(`<Error><Code>NoSuchKey</Code></Error>`)), nil
	case r.Method == http.MethodGet && ranged:
		return reply(r, http.StatusPartialContent, m.etag(old), old[:min(last+1, len(old))]), nil
	case r.Method == http.MethodGet:
		return reply(r, http.StatusOK, m.etag(old), old), nil
	case r.Header.Get("If-None-Match") != "" && there, match != "" && (!there || match != m.etag(old)):
		return reply(r, http.StatusPreconditionFailed, "", []byte(`<Error><Code>PreconditionFailed</Code></Error>`)), nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if m.objects == nil {
		m.objects = make(map[string][]byte)
	}
	m.objects[r.URL.Path] = body
	return reply(r, http.StatusOK, m.etag(body), nil), nil
}

func (m *memory) etag(body []byte) string {
	if m.clock != "" {
		return m.clock
	}
	sum := md5.Sum(body) //nolint:gosec // as above
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func reply(r *http.Request, status int, etag string, body []byte) *http.Response {
	resp := &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	if etag != "" {
		resp.Header.Set("ETag", etag)
	}
	return resp
}
