package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	locks "github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain TOKEN [PREFIX]",
		Short: "Explain which lock a fencing token belongs to, and why a resource may refuse it",
		Long: `explain looks for the hold that has TOKEN: whether it lasts, which lock it is of, and who holds that lock now. It tells a token
that is merely old from one that this cluster cannot have granted yet: then etcd was restored, and the era has to be raised. With
PREFIX it reads only names that begin with PREFIX, for a user who may not read all names.

In JSON "verdict" is one of holds, waits, over, unknown, no-lock, not-granted.`,
		Example: `  leasefence explain 4711
  leasefence explain 4711 jobs/nightly -o json | jq -r .verdict`,
		Args: thenPrefix(1),
		RunE: func(_ *cobra.Command, args []string) error {
			token, err := fence.Parse(args[0])
			if err != nil {
				return usageError("TOKEN: %w", err)
			}
			return a.ask(func(ctx context.Context, client *clientv3.Client) error {
				e, err := explain(ctx, client, token, prefixIn(args, 1))
				if err != nil {
					return prefixWanted(err)
				}
				return a.print(e, strings.Join(e.Says, "\n")+"\n")
			})
		},
	}
}

const lastEra = 32767

type explanation struct {
	Token    string   `json:"token"`
	Era      uint16   `json:"era"`
	Revision int64    `json:"revision"`
	Verdict  string   `json:"verdict"`
	Names    []string `json:"names,omitempty"` // more than one for a set
	Key      string   `json:"key,omitempty"`
	Owner    string   `json:"owner,omitempty"`
	Says     []string `json:"says"`
}

func (e *explanation) say(format string, args ...any) {
	e.Says = append(e.Says, fmt.Sprintf(format, args...))
}

func explain(ctx context.Context, client *clientv3.Client, token fence.Token, prefix string) (explanation, error) {
	e := explanation{Token: token.String(), Era: token.Era(), Revision: token.Revision()}
	resp, err := client.Get(ctx, prefix+"/", clientv3.WithCountOnly()) // a linearizable read, for the present revision
	if err != nil {
		return e, err
	}
	if now := resp.Header.Revision; e.Revision > now {
		e.Verdict = "not-granted"
		e.say("Token %d is not of this cluster: its revision would be %d, and etcd is at revision %d.", token, e.Revision, now)
		if e.Era == lastEra {
			e.say("%d is the last era: if a resource has this token as its mark, lower the mark by hand, as docs/guarantees.md shows.", lastEra)
			e.say("Otherwise the number is no token.")
			return e, nil
		}
		e.say("If etcd was restored from a snapshot, or replaced by another cluster, raise lease.Options.Era, and --era, to %d or more in all", e.Era+1)
		e.say("processes, so that every new token is larger. Otherwise the number is no token.")
		return e, nil
	}

	compacted := false
	created := func(kv *mvccpb.KeyValue) bool {
		if _, ok := contends(kv); ok && kv.CreateRevision == e.Revision {
			e.Key = cmp.Or(e.Key, string(kv.Key))
			e.Names = append(e.Names, strings.TrimSuffix(locks.Below(kv.Key), "/"))
		}
		return len(e.Names) < locks.MostInSet // a set has one revision for all its keys
	}
	err = scan(ctx, client, prefix, e.Revision, created)
	if errors.Is(err, rpctypes.ErrCompacted) {
		compacted = true
		e.Key, e.Names = "", nil // of the pages before the compaction
		err = scan(ctx, client, prefix, 0, created)
	}
	switch {
	case err != nil:
		return e, err
	case e.Key == "" && compacted:
		e.Verdict = "unknown"
		e.say("No hold has token %d any more. etcd has compacted revision %d, so nothing shows which lock the token was of.", token, e.Revision)
		e.say("A resource that refuses it has seen a newer token of the same lock.")
		return e, nil
	case e.Key == "":
		e.Verdict = "no-lock"
		e.say("No key of a lock below %q was created at revision %d: the number is no token of such a lock.", prefix, e.Revision)
		return e, nil
	}
	if err := e.compare(ctx, client); err != nil {
		return e, err
	}
	if len(e.Names) > 1 {
		e.say("It is the token of a set, which also has %s.", harmless(strings.Join(e.Names[1:], ", ")))
	}
	if e.Era > 0 {
		e.say("Its era, %d, comes from the session's options: etcd does not know it.", e.Era)
	}
	return e, nil
}

// compare says what has become of the hold, whose key is known.
func (e *explanation) compare(ctx context.Context, client *clientv3.Client) error {
	q, err := lease.Inspect(ctx, client, e.Names[0])
	if err != nil {
		return err
	}
	this := func(c lease.Contender) bool { return c.Revision == e.Revision }
	holds, waits := slices.IndexFunc(q.Holders, this), slices.IndexFunc(q.Waiters, this)
	switch {
	case holds >= 0:
		e.Verdict, e.Owner = "holds", q.Holders[holds].Owner
		e.say("Token %s holds %s: %s, %v left of its lease.", e.Token, harmless(e.Names[0]), named(e.Owner), q.Holders[holds].TTL)
		e.say("A resource that refuses it has seen a larger token: explain that one.")
		return nil
	case waits >= 0:
		e.Verdict, e.Owner = "waits", q.Waiters[waits].Owner
		e.say("Token %s waits for %s: %s. It must not be used yet.", e.Token, harmless(e.Names[0]), named(e.Owner))
		return nil
	}
	e.Verdict = "over"
	owner := "" // stays empty if etcd has compacted it
	resp, err := client.Get(ctx, e.Key, clientv3.WithRev(e.Revision))
	switch {
	case err == nil && len(resp.Kvs) > 0:
		e.Owner = string(resp.Kvs[0].Value)
		owner = " and " + named(e.Owner)
	case err != nil && !errors.Is(err, rpctypes.ErrCompacted):
		return err
	}
	e.say("Token %s belonged to %s%s. That hold or wait is over.", e.Token, harmless(e.Names[0]), owner)
	if len(q.Holders) == 0 {
		e.say("Nobody holds it now. A resource that refuses the token has seen a newer one.")
		return nil
	}
	for _, c := range q.Holders {
		now, _ := fence.NewToken(e.Era, c.Revision) // valid, as e.Token
		e.say("Now token %d holds it: %s. A resource that has seen that token refuses token %s.", now, named(c.Owner), e.Token)
	}
	return nil
}

// named is an owner's text for a sentence. Locks of etcd's own packages have no owner.
func named(owner string) string { return cmp.Or(harmless(owner), "an unnamed owner") }
