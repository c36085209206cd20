package election_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// tolerance suits a lease of the default TTL, which is renewed every 10 s and valid for 29 s.
const tolerance = 10 * time.Second

func newHealth(t *testing.T) *election.Health {
	t.Helper()
	h, err := election.NewHealth(tolerance)
	require.NoError(t, err)
	return h
}

func probe(t *testing.T, h *election.Health) (code int, body string) {
	t.Helper()
	synctest.Wait()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"), "an answer is out of date at once")
	require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
	return w.Code, w.Body.String()
}

func requireWell(t *testing.T, h *election.Health) {
	t.Helper()
	code, body := probe(t, h)
	require.Equal(t, http.StatusOK, code, body)
	require.Equal(t, "ok\n", body)
	require.NoError(t, h.Check())
}

func requireIll(t *testing.T, h *election.Health, want ...string) {
	t.Helper()
	code, body := probe(t, h)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Error(t, h.Check())
	for _, s := range want {
		require.Contains(t, body, s)
	}
}

// A process that only waits is always healthy: a restart would help nobody.
func TestHealth_followerIsAlwaysWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv := newHealth(t), newServer(t)
		newProcess(t, srv, lease.Options{}).leads(t, election.Options{})
		p := newProcess(t, srv, lease.Options{})
		r := p.runs(t, election.Options{Health: h})
		p.c.Cut()
		for range 100 {
			time.Sleep(time.Second)
			requireWell(t, h)
		}
		r.requireIdle(t)
	})
}

// If renewals are not answered, and everything else is, Health fails while the leader is still valid. It recovers when
// renewals are answered again.
func TestHealth_reportsRenewalsThatHaveStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(t)
		p := newProcess(t, newServer(t), lease.Options{})
		r := p.runs(t, election.Options{Health: h})
		c := r.leads(t)
		l, _ := election.FromContext(c.ctx)
		heal := p.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		time.Sleep(10*time.Second + tolerance)
		requireWell(t, h)
		time.Sleep(time.Nanosecond)
		requireIll(t, h, `leader of "x"`, "overdue by 10s, 9s are left")
		require.Equal(t, 9*time.Second-1, time.Until(l.Deadline()))
		require.NoError(t, l.Proclaim(t.Context(), "still writes"))
		requireIll(t, h)
		require.NoError(t, c.ctx.Err())

		time.Sleep(2 * time.Second)
		requireIll(t, h, "overdue by 12s, 7s are left")
		heal()
		time.Sleep(5 * time.Second) // there is another attempt every 5 s at most
		requireWell(t, h)
		require.NoError(t, c.ctx.Err())
	})
}

// Health names the leaders that are not healthy, until they have resigned, also without Run.
func TestHealth_namesTheUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv := newHealth(t), newServer(t)
		var all []*process
		var leaders []*election.Leadership
		for _, name := range []string{"alpha", "beta", "gamma"} {
			p := newProcess(t, srv, lease.Options{})
			l, err := election.Campaign(t.Context(), p.s, name, election.Options{Health: h})
			require.NoError(t, err)
			all, leaders = append(all, p), append(leaders, l)
		}
		requireWell(t, h)
		all[1].c.Cut()
		time.Sleep(10*time.Second + tolerance + 1)
		requireIll(t, h, `leader of "beta"`)
		_, body := probe(t, h)
		require.NotContains(t, body, "alpha")
		require.NotContains(t, body, "gamma")

		srv.Delete(leaders[0].Key())
		time.Sleep(tolerance + 1)
		requireIll(t, h, `leader of "alpha": its context ended 10s ago`, `leader of "beta"`)
		_, body = probe(t, h)
		require.NotContains(t, body, "gamma")

		for i, l := range leaders[:2] {
			require.ErrorIs(t, l.Resign(t.Context()), lease.ErrLost, "%d", i)
		}
		requireWell(t, h)
		require.NoError(t, leaders[2].Resign(t.Context()))
		time.Sleep(tolerance + 1)
		requireWell(t, h)
	})
}
