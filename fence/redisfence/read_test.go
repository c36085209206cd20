package redisfence_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// calls counts the commands that the server has run, those of scripts among them.
func calls(t *testing.T, c *redis.Client, name string) int {
	t.Helper()
	found := regexp.MustCompile("cmdstat_" + name + ":calls=([0-9]+)").FindStringSubmatch(c.Info(t.Context(), "commandstats").Val())
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// What each verb makes of the marks that it finds, and which commands it takes.
func TestMarks_readers(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	all := verbs(f)
	for name, verb := range all {
		require.NoError(t, verb(as(t, 1), "warm "+name), "the server knows the script")
	}
	stale := func(highest fence.Token) *fence.StaleError { return &fence.StaleError{Highest: highest} }
	byReader := func(highest fence.Token) *fence.StaleError {
		return &fence.StaleError{Highest: highest, ByReader: true}
	}
	reader := func(highest fence.Token) *fence.StaleError { return &fence.StaleError{Highest: highest, Read: true} }
	for _, tt := range []struct {
		before, verb string
		token        fence.Token
		after        string
		sets         int
		refused      *fence.StaleError
	}{
		{"", "ClaimRead", 54, "0 54", 1, nil},
		{"0 54", "ClaimRead", 60, "0 60", 1, nil},
		{"0 54", "ClaimRead", 41, "0 54", 1, nil},
		{"41", "ClaimRead", 54, "41 54", 1, nil},
		{"41 54", "ClaimRead", 54, "41 54", 1, nil},
		{"41 54", "ClaimRead", 50, "41 54", 1, nil},
		{"41 54", "ClaimRead", 100, "41 100", 1, nil},
		{"41 54", "ClaimRead", 41, "41 54", 1, nil},
		{"54", "ClaimRead", 54, "54", 1, nil},
		{"54", "ClaimRead", 41, "54", 0, reader(54)},
		{"54 60", "ClaimRead", 41, "54 60", 0, reader(54)},
		{"54", "ClaimRead", 9, "54", 0, reader(54)},

		{"", "CheckRead", 54, "0 54", 1, nil},
		{"41", "CheckRead", 54, "41 54", 1, nil},
		{"41 54", "CheckRead", 54, "41 54", 0, nil},
		{"41 54", "CheckRead", 50, "41 54", 0, nil},
		{"54", "CheckRead", 54, "54", 0, nil},
		{"54 60", "CheckRead", 41, "54 60", 0, reader(54)},

		{"41 54", "Check", 41, "41 54", 0, byReader(54)},
		{"41 54", "Check", 60, "41 54", 0, nil},
		{"0 54", "Claim", 41, "0 54", 0, byReader(54)},
		{"0 54", "Claim", 9, "0 54", 0, byReader(54)},
		{"50 54", "Claim", 41, "50 54", 0, stale(50)},
		{"41 54", "Claim", 54, "54", 1, nil},
		{"41 54", "Claim", 60, "60", 1, nil},
		{"41 54", "Set", 41, "41 54", 0, byReader(54)},
		{"41 54", "Set", 60, "60", 2, nil},
		{"41 54", "Do", 41, "41 54", 0, byReader(54)},
		{"41 54", "Do", 60, "60", 2, nil},
		{"41 54", "Run", 41, "41 54", 0, byReader(54)},
		{"41 54", "Run", 54, "54", 2, nil},
		{"54", "Set", 54, "54", 1, nil},
	} {
		t.Run(fmt.Sprintf("%s %d at %q", tt.verb, tt.token, tt.before), func(t *testing.T) {
			require.NoError(t, c.Del(t.Context(), f.MarkKey("orders"), "data").Err())
			if tt.before != "" {
				require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), tt.before, 0).Err())
			}
			require.NoError(t, c.ConfigResetStat(t.Context()).Err())
			err := all[tt.verb](as(t, tt.token), "orders")
			require.Equal(t, []int{1, 1, tt.sets}, []int{calls(t, c, "evalsha"), calls(t, c, "get"), calls(t, c, "set")},
				"EVALSHA, GET, SET")
			if tt.refused != nil {
				want := *tt.refused
				want.Resource, want.Token = "orders", tt.token
				require.Equal(t, &want, err)
				require.Empty(t, get(t, c, "data"))
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tt.after, get(t, c, f.MarkKey("orders")))
		})
	}
}

// A reader's context has no token for what writes, and a writer's none for what reads.
func TestMarks_tokenOfTheOtherMode(t *testing.T) {
	f := newFence(t, silent(t))
	for name, verb := range verbs(f) {
		switch name {
		case "ClaimRead":
			verb = f.ClaimRead
		case "CheckRead":
			verb = f.CheckRead
		default:
			err := verb(fence.NewReadContext(as(t, 41), 54), "orders")
			require.ErrorIs(t, err, fence.ErrInvalidToken, name)
			require.ErrorContains(t, err, "the context carries a reader's, want the context of a lock")
			continue
		}
		err := verb(fence.NewContext(reading(as(t, 41)), 54), "orders")
		require.ErrorIs(t, err, fence.ErrInvalidToken, name)
		require.ErrorContains(t, err, "the context carries a writer's, want the context of a read lock")
	}
}

// What else has been written in the place of two marks accepts nobody.
func TestMarks_malformedReadMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for _, value := range []string{"54 54", "54 41", "0 0", "54 0", "41  54", "41 54 ", " 54", "041 54", "41 054", "00 54", "41\t54"} {
		for name, verb := range verbs(f) {
			require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), value, 0).Err())
			require.ErrorIs(t, verb(as(t, 54), "orders"), redisfence.ErrMalformedMark, "%s at %q", name, value)
			require.Equal(t, value, get(t, c, f.MarkKey("orders")))
		}
	}
}
