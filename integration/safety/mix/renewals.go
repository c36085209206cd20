package mix

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// renewals records each grant and each renewal of a client's leases, right before the client gets the answer. From that
// the checker computes each lease's deadline, independently of the client.
type renewals struct{ log *history.Recorder }

// options must come before the options of package faults, so that an answer that is lost is not recorded.
func (r renewals) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream)}
}

func (r renewals) record(id int64, sent time.Duration) {
	now := r.log.Now()
	r.log.Record(history.Event{At: now, Kind: history.Renewed, Lease: id, Value: (now - sent).String()})
}

func (r renewals) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	sent := r.log.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	// A session chooses the ID of its lease. If the server chooses, the client grants the lease for a session to adopt.
	// That session counts from its first renewal, which may be answered after the grant has run out.
	asked, ok := req.(*etcdserverpb.LeaseGrantRequest)
	if ok && err == nil && asked.ID != 0 {
		r.record(asked.ID, sent)
	}
	return err
}

func (r renewals) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != faults.LeaseKeepAlive {
		return s, err
	}
	return &renewalStream{ClientStream: s, renewals: r}, nil
}

// renewalStream assumes that one renewal is under way at a time. etcd's own sessions send without waiting, but no
// checker uses their renewals.
type renewalStream struct {
	grpc.ClientStream
	renewals

	sent atomic.Int64 // when the latest renewal was sent
}

func (s *renewalStream) SendMsg(msg any) error {
	s.sent.Store(int64(s.log.Now()))
	return s.ClientStream.SendMsg(msg)
}

func (s *renewalStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if answer, ok := msg.(*etcdserverpb.LeaseKeepAliveResponse); ok && err == nil && answer.TTL > 0 {
		s.record(answer.ID, time.Duration(s.sent.Load()))
	}
	return err
}
