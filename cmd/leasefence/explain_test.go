package main

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// No era is above the last one, so explain does not advise it.
func TestExplain_lastEra(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fakeetcd.New().NewClient(t.Context())
		for era, want := range map[uint16]string{32766: "raise lease.Options.Era, and --era, to 32767 or more", 32767: "32767 is the last era"} {
			token, err := fence.NewToken(era, 1000)
			require.NoError(t, err)
			e, err := explain(t.Context(), client.Client, token, "")
			require.NoError(t, err)
			require.Equal(t, "not-granted", e.Verdict)
			require.Contains(t, strings.Join(e.Says, " "), want)
			require.NotContains(t, strings.Join(e.Says, " "), "32768")
		}
	})
}

// etcd may compact its history between two pages of a scan.
func TestExplain_compactedBetweenPages(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]int{"before the first page": 1, "after the first page": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fakeetcd.New().NewClient(t.Context())
				granted, err := client.Grant(t.Context(), 60)
				require.NoError(t, err)
				for n := range keysAtATime {
					_, err := client.Put(t.Context(), fmt.Sprint("data/", n), "")
					require.NoError(t, err)
				}
				put, err := client.Put(t.Context(), fmt.Sprintf("a/%x", int64(granted.ID)), "", clientv3.WithLease(granted.ID))
				require.NoError(t, err)
				compactAfter := func(reads int) {
					client.Inject(fakeetcd.Get, fakeetcd.Fault{Times: reads, OnAnswer: func() {
						if reads--; reads == 0 {
							put, err := client.Put(t.Context(), "zz", "")
							require.NoError(t, err)
							_, err = client.Compact(t.Context(), put.Header.Revision)
							require.NoError(t, err)
						}
					}})
				}
				compactAfter(reads)
				e, err := explain(t.Context(), client.Client, fence.Token(put.Header.Revision), "")
				require.NoError(t, err)
				require.Equal(t, "holds", e.Verdict)
				require.Equal(t, []string{"a"}, e.Names)

				compactAfter(1)
				seen := 0
				require.NoError(t, scan(t.Context(), client.Client, "", 0, func(*mvccpb.KeyValue) bool {
					seen++
					return true
				}))
				require.Equal(t, keysAtATime+2, seen, "the keys of before, and the one that was put meanwhile")
			})
		})
	}
}
