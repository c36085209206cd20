package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The page learns what has become of a release although nobody reads standard error.
func TestServer_answersWhileStandardErrorBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := startHub(t)
		s, _ := newSession(t, srv, 0)
		held, err := s.Lock(t.Context(), "a")
		require.NoError(t, err)
		stderr, writer := io.Pipe()
		defer func() { require.NoError(t, stderr.Close()) }()
		h.app.stderr = writer
		h.write = true
		pages := &uiServer{hub: h, local: true}
		order := fmt.Sprintf(`{"name":"a","typed":"a","mode":"ask","token":%q}`, held.Token())
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/release", strings.NewReader(order))
		r.Header.Set("X-Leasefence", "1")
		w := httptest.NewRecorder()
		answered := false
		go func() {
			pages.handler().ServeHTTP(w, r)
			answered = true
		}()
		synctest.Wait()
		require.True(t, answered)
		require.Equal(t, http.StatusNoContent, w.Code)
	})
}

// A browser that leaves is no viewer any more, and makes room for another stream.
func TestServer_streamEndsWithItsBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _ := startHub(t)
		pages := &uiServer{hub: h, local: true, streams: make(chan struct{}, 1)}
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/stream?name=a", http.NoBody)
		r.Header.Set("X-Leasefence", "1")
		go pages.handler().ServeHTTP(httptest.NewRecorder(), r)
		viewers := func() [3]int {
			time.Sleep(time.Second)
			h.mu.Lock()
			defer h.mu.Unlock()
			return [...]int{h.viewers, h.topics["a"].viewers, len(pages.streams)}
		}
		require.Equal(t, [...]int{1, 1, 1}, viewers())
		leave()
		require.Equal(t, [...]int{0, 0, 0}, viewers())
	})
}
