package lease_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// Two sessions exclude each other if and only if prefix and name together are the same, wherever one ends and the other
// begins. An illegal string is refused with the field's name. "$" stands for the session's own lease as spelled in its
// keys, so that a nested name may look like a contender.
func FuzzSession_names(f *testing.F) {
	for _, s := range [][4]string{
		{"", "a", "", "a"},
		{"", "a", "", "a/b"},
		{"a/", "b", "", "a/b"},
		{"a", "b", "", "ab"},
		{"", "a", "", "a/$"},
		{"", "a", "", "a/$-x"},
		{"", "a/$", "", "a"},
		{"a/", "b", "a", "b"},
		{"jobs/", "a", "jobs/a/", "a"},
		{"", "a/b", "", "a"},
		{"", "a", "", "b"},
		{"", "a", "", "a-p1-"},
		{"/", "a", "//", "a"},
		{"", "", "\x00", "a"},
		{"\xff", "a", "", "a\xff"},
		{"", "a/", "", "/a"},
		{"~", "a", "a/~/", "a"},
		{"a", "~", "a/", "b/~"},
		{"a", "b", "a/~", "b"},
		{"", "a//b", "", strings.Repeat("a", 1025)},
		{strings.Repeat("p", 1024), strings.Repeat("n", 1024), strings.Repeat("p", 1025), "a"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, prefix, name, otherPrefix, other string) {
		synctest.Test(t, func(t *testing.T) {
			srv := newServer(t)
			first, legal := tryLockIn(t, srv, prefix, name)
			if !legal {
				return
			}
			require.NoError(t, first.err, "nobody was there")
			require.True(t, strings.HasPrefix(first.lock.Key(), first.full+"/"))
			second, legal := tryLockIn(t, srv, otherPrefix, other)
			switch {
			case !legal:
			case first.full == second.full:
				require.ErrorIs(t, second.err, lease.ErrLocked)
			default:
				require.NoError(t, second.err, "%q blocks %q", first.full, second.full)
				require.NotEqual(t, first.lock.Key(), second.lock.Key())
			}
		})
	})
}

// tried is the outcome of a TryLock.
type tried struct {
	full string // prefix and name
	lock *lease.Lock
	err  error
}

// tryLockIn tries a lock in a session of its own with that prefix. It reports whether prefix and name are legal, and if
// not, checks the error.
func tryLockIn(t *testing.T, srv *fakeetcd.Server, prefix, name string) (got tried, legal bool) {
	t.Helper()
	s, err := lease.NewSession(t.Context(), srv.NewClient(t.Context()).Client, lease.Options{Prefix: prefix})
	if len(prefix) > queue.MaxName || !utf8.ValidString(prefix) || strings.ContainsRune(prefix, 0) || queue.HasReserved(prefix) {
		require.ErrorContains(t, err, "lease: Options.Prefix ")
		return tried{}, false
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	name = strings.ReplaceAll(name, "$", strconv.FormatInt(int64(s.Status().LeaseID), 16))
	l, err := s.TryLock(t.Context(), name)
	if illegal := queue.CheckName(name); illegal != nil {
		require.EqualError(t, err, "lease: name "+illegal.Error())
		return tried{}, false
	}
	return tried{prefix + name, l, err}, true
}
