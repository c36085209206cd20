package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// What each fault does to a request: the caller's answer, and how often the server has executed the request when the
// caller gets it, and in the end.
func TestInterceptor(t *testing.T) {
	for fault, want := range map[faults.Fault]struct {
		lost, delayed bool
		at, end       int
	}{
		faults.LoseRequest:   {lost: true},
		faults.LoseAnswer:    {lost: true, at: 1, end: 1},
		faults.DelayRequest:  {delayed: true, at: 1, end: 1},
		faults.DelayAnswer:   {delayed: true, at: 1, end: 1},
		faults.LateRequest:   {lost: true, end: 1},
		faults.RepeatRequest: {at: 1, end: 2},
	} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			t.Parallel()
			delay := 2 * time.Second
			if !want.delayed {
				delay = 10 * time.Second // longer than a slow machine takes to look
			}
			srv, in := etcdtest.Start(t, etcdtest.Options{}), faults.NewInterceptor(t)
			client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
			executed := func() int {
				n := 0
				for _, kv := range srv.KeyValues(t, "key") {
					n += int(kv.Version)
				}
				return n
			}
			injected := in.Inject(t, faults.Rule{Fault: fault, Method: faults.Put, Times: 1, Delay: delay})
			ctx, cancel := context.WithCancel(rig.Bounded(t))
			began := time.Now()
			_, err := client.Put(ctx, "key", "")
			cancel() // a late request arrives all the same
			require.Equal(t, want.lost, status.Code(err) == codes.Unavailable)
			require.Equal(t, want.delayed, time.Since(began) >= delay)
			require.Equal(t, want.at, executed())
			require.Equal(t, 1, injected.Hits())
			require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.Put, want.end))
			require.Equal(t, want.end, executed())
			require.Equal(t, 1, in.Sent(faults.Put))
		})
	}
}
