package httpfence_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// The suite of wires has more refusals, and what the client makes of them.
func TestError_answersRefusalsOnly(t *testing.T) {
	w := httptest.NewRecorder()
	for _, h := range []string{"Content-Length", "Content-Encoding", "ETag", "Last-Modified", "Cache-Control"} {
		w.Header().Set(h, "1")
	}
	require.True(t, httpfence.Error(w, fmt.Errorf("at 10.0.0.7: %w", httpfence.ErrMissing)))
	require.Len(t, w.Result().Header, 2, "no header of another body")
	require.NotContains(t, w.Body.String(), "10.0.0.7")
	for _, err := range []error{nil, io.EOF} {
		w := httptest.NewRecorder()
		require.False(t, httpfence.Error(w, err))
		require.False(t, w.Flushed)
		require.Empty(t, w.Header())
		require.Zero(t, w.Body.Len())
	}
}

// response is one as a client gets it.
func response(status int, contentType, body string) *http.Response {
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"Content-Type": {contentType}},
		Body:       io.NopCloser(strings.NewReader(body)),
	}
}

const (
	problemJSON = "application/problem+json"
	otherBody   = `{"type":"` + httpfence.TypeOtherLock + `","resource":"orders","token":"41","lock":"report","follows":"accounts"}`
	staleBody   = `{"type":"` + httpfence.TypeStale + `","resource":"orders","token":"41","highest":"54"}`
)

func TestReadError_knowsARefusalByStatusContentTypeAndType(t *testing.T) {
	for _, refusal := range []*http.Response{
		response(412, problemJSON, staleBody),
		response(412, "Application/Problem+JSON; charset=utf-8", staleBody),
	} {
		require.Equal(t, &fence.StaleError{Resource: "orders", Token: 41, Highest: 54}, httpfence.ReadError(refusal))
	}
	require.Equal(t, &fence.OtherLockError{Resource: "orders", Token: 41, Lock: "report", Follows: "accounts"},
		httpfence.ReadError(response(409, problemJSON, otherBody)))
	for _, other := range []*http.Response{
		response(200, problemJSON, staleBody),
		response(400, problemJSON, staleBody),
		response(428, problemJSON, staleBody),
		response(409, problemJSON, staleBody),
		response(412, problemJSON, otherBody),
		response(412, "application/json", staleBody),
		response(412, "", staleBody),
		response(412, problemJSON, ""),
		response(412, problemJSON, staleBody+"}"),
		response(412, problemJSON, `{"type":"about:blank"}`),
		response(412, problemJSON, `{"type":["`+httpfence.TypeStale+`"]}`),
		response(412, problemJSON, strings.Repeat(" ", 128<<10)+staleBody),
		response(412, problemJSON, `{"type":"`+httpfence.TypeMissing+`"}`),
		response(428, problemJSON, `{"type":"`+httpfence.TypeInvalid+`"}`),
	} {
		require.NoError(t, httpfence.ReadError(other), "%d %s", other.StatusCode, other.Header)
	}
	require.NoError(t, httpfence.ReadError(nil))
	none := response(412, problemJSON, "")
	none.Body = nil
	require.NoError(t, httpfence.ReadError(none))

	pad := strings.Repeat(" ", 128<<10-len(staleBody))
	require.ErrorIs(t, httpfence.ReadError(response(412, problemJSON, pad+staleBody)), fence.ErrStale)
	require.NoError(t, httpfence.ReadError(response(412, problemJSON, pad+" "+staleBody)), "128 KiB and a byte")
}

// The holder has been refused, whatever the problem's members are.
func TestReadError_malformedMembersAreLeftOut(t *testing.T) {
	for _, members := range []string{
		``, `,"title":1,"status":"412","detail":{}`,
		`,"token":41,"highest":54`, `,"resource":{},"token":null,"highest":[]`, `,"token":"041","highest":"-1"`,
		`,"read":"yes","byReader":true`,
	} {
		err := httpfence.ReadError(response(412, problemJSON, `{"type":"`+httpfence.TypeStale+`"`+members+`}`))
		require.Equal(t, &fence.StaleError{}, err, members)
	}
	for _, members := range []string{
		``, `,"title":1,"status":"409"`, `,"lock":1,"follows":{}`, `,"resource":[],"token":"041","lock":null`, `,"read":true`,
	} {
		err := httpfence.ReadError(response(409, problemJSON, `{"type":"`+httpfence.TypeOtherLock+`"`+members+`}`))
		require.Equal(t, &fence.OtherLockError{}, err, members)
	}
}

// A refusal whose body breaks off is an error, but matches no refusal.
func TestReadError_brokenBody(t *testing.T) {
	errReset := errors.New("connection reset")
	resp := response(412, problemJSON, "")
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(staleBody[:40]), iotest.ErrReader(errReset)))
	err := httpfence.ReadError(resp)
	require.ErrorIs(t, err, errReset)
	require.NotErrorIs(t, err, fence.ErrStale)
}

func FuzzReadError(f *testing.F) {
	f.Add(412, problemJSON, []byte(staleBody))
	f.Add(412, problemJSON, []byte(`{"type":"`+httpfence.TypeStale+`","token":41,"highest":1e300}`))
	f.Add(412, problemJSON, []byte(`{"type":"`+httpfence.TypeStale+`","token":"41","highest":"54","read":"true","byReader":"true"}`))
	f.Add(409, problemJSON, []byte(otherBody))
	f.Add(409, problemJSON, []byte(`{"type":"`+httpfence.TypeOtherLock+`","token":"41","read":"true","lock":1}`))
	f.Add(412, problemJSON, []byte("If-Match does not hold"))
	f.Add(412, problemJSON, []byte(strings.Repeat("long ", 30_000)))
	f.Add(428, problemJSON, []byte(`{"type":"`+httpfence.TypeMissing+`"}`))
	f.Add(400, problemJSON+"; q=", []byte(`{"type":"`+httpfence.TypeInvalid+`"`))
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte) {
		resp, original := response(status, contentType, ""), &closer{Reader: bytes.NewReader(body)}
		resp.Body = original
		err := httpfence.ReadError(resp)
		_ = httpfence.ReadError(resp)
		again, readErr := io.ReadAll(resp.Body)
		require.NoError(t, readErr)
		require.Equal(t, string(body), string(again))
		require.False(t, original.closed)
		require.NoError(t, resp.Body.Close())
		require.True(t, original.closed)
		if err == nil {
			return
		}
		matches := 0
		for _, target := range []error{fence.ErrStale, fence.ErrOtherLock, httpfence.ErrMissing, fence.ErrInvalidToken} {
			if errors.Is(err, target) {
				matches++
			}
		}
		require.Equal(t, 1, matches)
		w := httptest.NewRecorder()
		require.True(t, httpfence.Error(w, err))
		if len(body) < 1<<10 { // longer names are cut
			require.Equal(t, err, httpfence.ReadError(w.Result()), "what Error writes, ReadError reads")
		}
	})
}
