package lease_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func (e *env) list(t *testing.T, prefix string) (all []lease.Queue) {
	t.Helper()
	for q, err := range lease.List(t.Context(), e.c.Client, prefix) {
		require.NoError(t, err)
		all = append(all, q)
	}
	return all
}

// byName returns the result of Inspect without the fields that List does not read.
func (e *env) byName(t *testing.T, name string) lease.Queue {
	t.Helper()
	q := e.inspect(t, name)
	for _, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
		for i := range list {
			list[i].Owner, list[i].TTL = "", 0
		}
	}
	return q
}

// Whatever the names are, nested and beside each other, List shows each queue once and as Inspect does.
func TestList_agreesWithInspect(t *testing.T) {
	// Of the first two, the inner one opens before the outer one, of which there is only a slot.
	names := []string{
		"c", "c/~slot",
		"a", "a/b", "a/b/c", "a/1", "a/1f", "a/r1", "a/z", "a/~b", "a/~b/~c", "a/~slot", "a/~slot/~1", "a!", "a0", "ab", "b", "b/é", "é", "é/1",
	}
	slots := []string{"a/~slot/0", "a/~slot/1", "a/~slot/10", "a/b/~slot/2", "ab/~slot/0"}
	for range 20 {
		bubble(t, func(t *testing.T, e *env) {
			id := e.s.Status().LeaseID
			for i := range 400 {
				name := names[2+rand.IntN(len(names)-2)]
				suffix := fmt.Sprintf("%x-n%d", int64(id), i)
				switch rand.IntN(10) {
				case 0:
					e.srv.Put(name+"/"+[]string{"7", "cafe", "no lease", "-", "~x", "r"}[rand.IntN(6)], "foreign")
				case 1, 2:
					e.put(t, name+"/"+string("rgqsz"[rand.IntN(5)])+suffix, "", id)
				case 3:
					e.put(t, slots[rand.IntN(len(slots))]+"/"+strings.Replace(suffix, "-", "-of3-", 1), "", id)
				case 4:
					e.put(t, slots[rand.IntN(len(slots))]+"/"+suffix, "", id)
				case 5:
					e.put(t, name+"/"+strings.Replace(suffix, "-", "-of3-", 1), "", id)
				default:
					e.put(t, name+"/"+suffix, "", id)
				}
			}
			for _, form := range []string{"c/~slot/%x-n", "c/~slot/9/%x-of10-n", "c/~slot/r%x-n"} {
				e.put(t, fmt.Sprintf(form, int64(id)), "", id)
			}
			for _, prefix := range []string{"", "a", "a/", "a/1", "a/b", "a/b/", "a/~", "b", "c", "é", "nothing"} {
				var want []lease.Queue
				for _, name := range names {
					if q := e.byName(t, name); strings.HasPrefix(name, prefix) && len(q.Holders)+len(q.Waiters) > 0 {
						want = append(want, q)
					}
				}
				for _, name := range slots {
					of, _, _ := strings.Cut(name, "/~slot")
					if !strings.HasPrefix(name, prefix) || strings.HasPrefix(of, prefix) {
						continue
					}
					// A slot is its own queue if the semaphore's name is not listed.
					if q := e.byName(t, name); len(q.Holders) > 0 {
						want = append(want, q)
					}
				}
				got := e.list(t, prefix)
				byName := func(a, b lease.Queue) int { return strings.Compare(a.Name, b.Name) }
				slices.SortFunc(got, byName)
				slices.SortFunc(want, byName)
				require.Equal(t, want, got, prefix)
			}
		})
	}
}

// List reads no further than the consumer wants, and shows everything as of the first page.
func TestList_atOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		id := e.s.Status().LeaseID
		put := func(from, to int, name string) {
			for i := from; i < to; i++ {
				e.put(t, fmt.Sprintf("%s%03d/%x", name, i, int64(id)), "", id)
			}
		}
		put(0, 300, "n")
		reads := func() int { return len(e.c.Calls(fakeetcd.Get)) }
		before := reads()
		for _, err := range lease.List(t.Context(), e.c.Client, "n") {
			require.NoError(t, err)
			break
		}
		require.Equal(t, before+1, reads())

		look := func(meanwhile func()) (n int) {
			for _, err := range lease.List(t.Context(), e.c.Client, "n") {
				require.NoError(t, err)
				if n++; n == 1 {
					meanwhile()
				}
			}
			return n
		}
		require.Equal(t, 300, look(func() { put(300, 310, "n") }))
		require.Equal(t, 320, look(func() {
			put(310, 320, "n")
			require.NoError(t, e.srv.Compact(e.srv.Rev()))
		}), "or else as it is from then on")
	})
}
