package etcd_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Only what is refused for some of its keys is sent again in smaller parts.
func TestInParts(t *testing.T) {
	list := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, tc := range map[string]struct {
		refuse   func(part []int) error
		refusals int
		sent     []int // sizes of the parts
		failed   []int
	}{
		"all goes well": {sent: []int{4, 4, 2}},
		"a key is forbidden": {
			refuse: func(part []int) error {
				if slices.Contains(part, 5) {
					return rpctypes.ErrPermissionDenied
				}
				return nil
			},
			refusals: math.MaxInt,
			sent:     []int{4, 4, 2, 1, 2, 1, 1, 2, 1}, failed: []int{5},
		},
		"all are forbidden": {
			refuse:   func([]int) error { return rpctypes.ErrPermissionDenied },
			refusals: 3, sent: []int{4, 2, 1}, failed: list,
		},
		"the server takes fewer": {
			refuse: func(part []int) error {
				if len(part) > 3 {
					return rpctypes.ErrTooManyOps
				}
				return nil
			},
			refusals: 1, sent: []int{4, 2, 2, 2, 2, 2},
		},
		"the password is wrong": {
			refuse:   func([]int) error { return rpctypes.ErrAuthFailed },
			refusals: math.MaxInt, sent: []int{4}, failed: list,
		},
		"nobody answers": {
			refuse:   func([]int) error { return rpctypes.ErrNoLeader },
			refusals: math.MaxInt, sent: []int{4}, failed: list,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var sent, done []int
			failed, err := etcd.InParts(list, 4, tc.refusals, func(part []int) error {
				sent = append(sent, len(part))
				if tc.refuse != nil {
					if err := tc.refuse(part); err != nil {
						return err
					}
				}
				done = append(done, part...)
				return nil
			})
			require.Equal(t, tc.failed, failed)
			require.Equal(t, tc.failed != nil, err != nil)
			require.Equal(t, tc.sent, sent)
			require.ElementsMatch(t, list, append(done, failed...))
		})
	}
}
