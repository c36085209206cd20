package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

func TestMetadataKey_isTheHeaderOfHTTP(t *testing.T) {
	require.True(t, strings.EqualFold(httpfence.Header, grpcfence.MetadataKey))
	require.Equal(t, "fencing-token", grpcfence.MetadataKey, "gRPC's keys are in lower case")
}

func TestUnary_refusesAndAccepts(t *testing.T) {
	for name, server := range both {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, g.Claim("orders", 54))
			var served []fence.Token
			_, plain := serve(t, server(t, &g, grpcfence.Options{}), &service{
				unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
					token, _ := fence.FromContext(ctx)
					served = append(served, token)
					return nil
				},
			})
			err := call(with(t, "41"), plain)
			md := requireInfo(t, err, codes.FailedPrecondition, grpcfence.ReasonStale)
			require.Equal(t, map[string]string{"resource": "orders", "token": "41", "highest": "54"}, md)
			require.Equal(t, `fence: stale token 41 for "orders": highest seen is 54`, status.Convert(err).Message())

			requireInfo(t, call(t.Context(), plain), codes.FailedPrecondition, grpcfence.ReasonMissing)
			for _, values := range [][]string{{"054"}, {"0"}, {""}, {"54,54"}, {"54", "54"}, {"54", "55"}} {
				requireInfo(t, call(with(t, values...), plain), codes.InvalidArgument, grpcfence.ReasonInvalid)
			}
			require.Empty(t, served, "no refused call reaches the handler")
			require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())

			for _, token := range []string{"54", "54", "60"} {
				require.NoError(t, call(with(t, token), plain))
			}
			require.Equal(t, []fence.Token{54, 54, 60}, served)
			require.Equal(t, map[string]fence.Token{"orders": 60}, g.Marks())
		})
	}
}

func TestUnary_methodsThatDoNotWriteRaiseNoMark(t *testing.T) {
	for name, server := range both {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, g.Claim("orders", 54))
			var carried []fence.Token
			var asked string
			_, plain := serve(t, server(t, &g, grpcfence.Options{
				Writes: func(method string) bool { asked = method; return false },
			}), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
				token, _ := fence.FromContext(ctx)
				carried = append(carried, token)
				return nil
			}})
			require.NoError(t, call(t.Context(), plain))
			require.NoError(t, call(with(t, "41"), plain))
			require.NoError(t, call(with(t, "60"), plain))
			require.Equal(t, []fence.Token{0, 41, 60}, carried)
			require.Equal(t, testgrpc.TestService_UnaryCall_FullMethodName, asked)
			requireInfo(t, call(with(t, "060"), plain), codes.InvalidArgument, grpcfence.ReasonInvalid)
			require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())
		})
	}
}

func TestUnary_resourceIsThatOfTheRequest(t *testing.T) {
	var g fence.Guard
	named := func(_ context.Context, method string, req any) string {
		if method != testgrpc.TestService_UnaryCall_FullMethodName {
			return ""
		}
		return string(req.(*testgrpc.SimpleRequest).GetPayload().GetBody())
	}
	s, err := grpcfence.NewServer(named, grpcfence.GuardCheck(&g), grpcfence.Options{})
	require.NoError(t, err)
	_, plain := serve(t, s, new(service))
	for name, token := range map[string]string{"a": "54", "b": "41"} {
		_, err := plain.UnaryCall(with(t, token), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte(name)}})
		require.NoError(t, err)
	}
	require.Equal(t, map[string]fence.Token{"a": 54, "b": 41}, g.Marks())
	require.Equal(t, codes.Internal, status.Code(call(with(t, "60"), plain)), "the empty name is none")
	require.Len(t, g.Marks(), 2)
}

// A check that cannot be made refuses, and tells the client nothing of why unless it has a status.
func TestUnary_failedCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{errors.New("dial 10.0.0.7: refused"), codes.Unavailable},
		{fmt.Errorf("at 10.0.0.7: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{status.Error(codes.ResourceExhausted, "try later"), codes.ResourceExhausted},
		{fmt.Errorf("at 10.0.0.7: %w", fence.ErrStale), codes.FailedPrecondition},
	} {
		check := func(context.Context, string, fence.Token) error { return c.err }
		s, err := grpcfence.NewServer(orders, check, grpcfence.Options{})
		require.NoError(t, err)
		_, plain := serve(t, s, &service{unary: func(context.Context, *testgrpc.SimpleRequest) error {
			t.Error("the handler has run")
			return nil
		}})
		err = call(with(t, "54"), plain)
		require.Equal(t, c.code, status.Code(err))
		if c.code != codes.DeadlineExceeded { // its status is gRPC's own
			require.NotContains(t, err.Error(), "10.0.0.7")
		}

		// An interceptor further out sees the cause.
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.MetadataKey, "54"))
		_, err = s.Unary(ctx, nil, new(grpc.UnaryServerInfo), nil)
		require.ErrorIs(t, err, c.err)
	}
}

// A handler returns what its store says, and the client's error is the store's.
func TestUnary_refusalCrossesTheWire(t *testing.T) {
	stale := &fence.StaleError{Resource: "é\xff", Token: 1<<62 + 1, Highest: 1<<62 + 3}
	for name, server := range both {
		t.Run(name, func(t *testing.T) {
			var answer error
			fenced, plain := serve(t, server(t, new(fence.Guard), grpcfence.Options{}), &service{
				unary: func(context.Context, *testgrpc.SimpleRequest) error { return answer },
			})
			ctx := fence.NewContext(t.Context(), 1<<62+1)

			answer = fmt.Errorf("update at 10.0.0.7: %w", stale)
			err := call(ctx, fenced)
			require.ErrorIs(t, err, fence.ErrStale)
			var got *fence.StaleError
			require.ErrorAs(t, err, &got)
			require.Equal(t, fence.StaleError{Resource: "é\uFFFD", Token: 1<<62 + 1, Highest: 1<<62 + 3}, *got, "to the digit")
			requireInfo(t, err, codes.FailedPrecondition, grpcfence.ReasonStale)
			requireInfo(t, fmt.Errorf("sell: %w", err), codes.FailedPrecondition, grpcfence.ReasonStale)
			require.NotContains(t, err.Error(), "10.0.0.7")
			require.Contains(t, err.Error(), "code = FailedPrecondition")

			err = call(with(t, got.Token.String()), plain)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.ErrorIs(t, grpcfence.ReadError(err), fence.ErrStale)

			answer = status.Error(codes.FailedPrecondition, "the account is closed")
			err = call(ctx, fenced)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.Equal(t, "the account is closed", status.Convert(err).Message())

			require.ErrorIs(t, call(t.Context(), fenced), grpcfence.ErrMissing)
			require.ErrorIs(t, call(with(t, "0"), fenced), fence.ErrInvalidToken)
		})
	}
}

func TestUnaryClient_metadataOfTheCaller(t *testing.T) {
	var g fence.Guard
	fenced, _ := serve(t, early(t, &g, grpcfence.Options{}), new(service))
	require.NoError(t, call(fence.NewContext(with(t, "54"), 54), fenced))
	require.NoError(t, call(with(t, "55"), fenced))
	require.Equal(t, map[string]fence.Token{"orders": 55}, g.Marks())
	for _, values := range [][]string{{"56"}, {""}, {"57", "57"}} {
		ctx := fence.NewContext(with(t, values...), 57)
		err := call(ctx, fenced)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, "the context carries 57")
		_, err = fenced.FullDuplexCall(ctx)
		require.ErrorContains(t, err, "the context carries 57")
	}
	require.Equal(t, map[string]fence.Token{"orders": 55}, g.Marks(), "nothing was sent")
}

// overtake has the handler of token 41 stop between the check and its write, sends 54 meanwhile, and returns the
// tokens in the order of their writes.
func overtake(t *testing.T, server *grpcfence.Server) []fence.Token {
	t.Helper()
	var (
		mu      sync.Mutex
		writes  []fence.Token
		checked = make(chan struct{})
		resume  = make(chan struct{})
	)
	fenced, _ := serve(t, server, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
		token, _ := fence.FromContext(ctx)
		if token == 41 {
			close(checked)
			<-resume
		}
		mu.Lock()
		defer mu.Unlock()
		writes = append(writes, token)
		return nil
	}})
	var wg sync.WaitGroup
	wg.Go(func() { _ = call(fence.NewContext(t.Context(), 41), fenced) })
	<-checked
	newer := make(chan struct{})
	wg.Go(func() {
		defer close(newer)
		_ = call(fence.NewContext(t.Context(), 54), fenced)
	})
	// Either the newer one passes, or it waits: the latter can only be seen by giving it time.
	select {
	case <-newer:
	case <-time.After(50 * time.Millisecond):
	}
	close(resume)
	wg.Wait()
	return writes
}

func TestUnary_onlyTheAtomicServerCannotBeOvertaken(t *testing.T) {
	require.Equal(t, []fence.Token{41, 54}, overtake(t, atomicly(t, new(fence.Guard), grpcfence.Options{})))
	require.Equal(t, []fence.Token{54, 41}, overtake(t, early(t, new(fence.Guard), grpcfence.Options{})),
		"the stale write came last: this is what the doc warns of")
}

func TestUnary_atomicHandlerPanics(t *testing.T) {
	var g fence.Guard
	s := atomicly(t, &g, grpcfence.Options{})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.MetadataKey, "54"))
	require.PanicsWithValue(t, "handler", func() {
		_, _ = s.Unary(ctx, nil, new(grpc.UnaryServerInfo), func(context.Context, any) (any, error) { panic("handler") })
	})
	require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
	require.NoError(t, g.Check("orders", 55))
}

func TestNewServer_namesWhatIsNil(t *testing.T) {
	_, err := grpcfence.NewServer(nil, grpcfence.GuardCheck(new(fence.Guard)), grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: resource: nil, want a function")
	_, err = grpcfence.NewServer(orders, nil, grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: check: nil, want a function")
	_, err = grpcfence.NewServer(orders, grpcfence.GuardCheck(nil), grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: check: nil, want a function")
	_, err = grpcfence.NewAtomicServer(nil, new(fence.Guard), grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: resource: nil, want a function")
	_, err = grpcfence.NewAtomicServer(orders, nil, grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: guard: nil, want a guard")
}
