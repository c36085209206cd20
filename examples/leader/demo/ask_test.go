//go:build unix

package demo

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

// A process that has just started does not know yet who leads, and then knows who led.
func TestFollows(t *testing.T) {
	t.Parallel()
	answers := make(chan func(http.ResponseWriter), 4)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { (<-answers)(w) }))
	t.Cleanup(server.Close)
	leader := func(id string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = fmt.Fprintf(w, `{"leader":%q}`, id) }
	}
	failure := func(status int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { http.Error(w, "not known yet", status) }
	}
	s, p := &show{Stage: &stage.Stage{}}, &stage.Process{ID: "A", URL: server.URL}

	for _, answer := range []func(http.ResponseWriter){failure(http.StatusServiceUnavailable), leader(""), leader("B"), leader("C")} {
		answers <- answer
	}
	require.NoError(t, s.follows(t.Context(), p, "C"))
	require.Empty(t, answers)

	answers <- failure(http.StatusInternalServerError)
	require.ErrorContains(t, s.follows(t.Context(), p, "C"), "A sees that C leads: 500")
}
