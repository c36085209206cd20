package etcdfence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// errOvertaken reports that the range that a write depends on has changed since it was read.
var errOvertaken = errors.New("overtaken")

// appends returns the forms to write.
func appends(t *testing.T, marks *etcdfence.Marks) []fencetest.Form {
	t.Helper()
	forms := []fencetest.Form{{Name: "Put"}, {Name: "Txn", Alone: "one step"}, {Name: "Get, Txn", Alone: "one step"}}
	for i, form := range forms {
		forms[i].Write = func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
			kv, err := marks.KV(resource)
			if err != nil {
				return err
			}
			data := "data/" + resource + "/"
			put, get := clientv3.OpPut(data+e.String(), ""), clientv3.OpGet(data, clientv3.WithPrefix())
			switch form.Name {
			case "Put":
				return second(kv.Do(ctx, put))
			case "Txn":
				resp, err := kv.Txn(ctx).Then(get, put).Commit()
				if err == nil {
					saw(entries(t, (*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())))
				}
				return err
			}
			if err := marks.Claim(ctx, resource); err != nil {
				return err
			}
			read, err := kv.Do(ctx, get)
			if err != nil {
				return err
			}
			saw(entries(t, read.Get()))
			same := clientv3.Compare(clientv3.ModRevision(data), "<", read.Get().Header.Revision+1).WithPrefix()
			resp, err := kv.Txn(ctx).If(same).Then(put).Commit()
			if err == nil && !resp.Succeeded {
				err = errOvertaken
			}
			return err
		}
	}
	return forms
}

// entries parses keys of the form "data/resource/entry".
func entries(t *testing.T, resp *clientv3.GetResponse) []fencetest.Entry {
	t.Helper()
	var text strings.Builder
	for _, kv := range resp.Kvs {
		text.WriteString(" " + path.Base(string(kv.Key)))
	}
	all, err := fencetest.Entries(text.String())
	require.NoError(t, err)
	return all
}

// lost reports whether a message of a disturbed client was lost.
func lost(err error) bool { return err != nil && strings.Contains(err.Error(), "faults: ") }

// disturbed returns a client whose requests and answers are sometimes late or lost.
func disturbed(t *testing.T, srv *etcdtest.Server) *clientv3.Client {
	t.Helper()
	oneIn := func(n int) func(any) bool { return func(any) bool { return rand.IntN(n) == 0 } }
	in := faults.NewInterceptor(t)
	in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: oneIn(50)})
	in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Txn, Match: oneIn(50)})
	in.Inject(t, faults.Rule{Fault: faults.LateRequest, Method: faults.Txn, Match: oneIn(50), Delay: 10 * time.Millisecond})
	in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.Txn, Match: oneIn(4), Delay: 5 * time.Millisecond})
	return srv.Client(t, etcdtest.Dial(in.DialOptions()...))
}

// Overlapping holders claim and write in all forms; messages are late or lost, and calls are cancelled at random.
func TestMarks_random(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client, late := srv.Client(t), disturbed(t, srv)
	marks, err := etcdfence.NewMarks(late, etcdfence.Options{})
	require.NoError(t, err)
	fencetest.Random(t, fencetest.Store{
		Forms:  appends(t, marks),
		Claims: []func(context.Context, string) error{marks.Claim},
		Entries: func(ctx context.Context, resource string) ([]fencetest.Entry, error) {
			err := marks.Claim(ctx, resource)
			for lost(err) && ctx.Err() == nil {
				err = marks.Claim(ctx, resource)
			}
			if err != nil {
				return nil, err
			}
			resp, err := client.Get(ctx, "data/"+resource+"/", clientv3.WithPrefix(),
				clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
			if err != nil {
				return nil, err
			}
			return entries(t, resp), nil
		},
		Ordered: true,
		Again:   func(err error) bool { return errors.Is(err, errOvertaken) || lost(err) },
	})
}

// Put stands in for a Check that raises the mark, since that of Marks raises none.
func TestMarks_grants(t *testing.T) {
	t.Parallel()
	marks, err := etcdfence.NewMarks(etcdtest.Start(t, etcdtest.Options{}).Client(t), etcdfence.Options{})
	require.NoError(t, err)
	put := func(ctx context.Context, resource string) error {
		kv, err := marks.KV(resource)
		if err != nil {
			return err
		}
		return second(kv.Put(ctx, "data/"+resource, ""))
	}
	fencetest.Grants(t, fencetest.VerbsOf(marks.Claim, put, nil, marks.ClaimRead, marks.CheckRead), "Check")
}

func TestMain(m *testing.M) { etcdtest.Main(m) }

// heldBy returns a KV that is fenced by a held lock.
func heldBy(tb testing.TB, kv clientv3.KV, h etcdfence.Holder) *etcdfence.KV {
	tb.Helper()
	k, err := etcdfence.NewKV(kv, h)
	require.NoError(tb, err)
	return k
}

// markedBy returns a KV that is fenced by a mark.
func markedBy(tb testing.TB, kv clientv3.KV, resource string) *etcdfence.KV {
	tb.Helper()
	marks, err := etcdfence.NewMarks(kv, etcdfence.Options{})
	require.NoError(tb, err)
	k, err := marks.KV(resource)
	require.NoError(tb, err)
	return k
}

// second returns only the error of a call.
func second[T any](_ T, err error) error { return err }
