package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	locks "github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

func (d *doctor) alarms(ctx context.Context) error {
	resp, err := d.client.AlarmList(ctx)
	if err != nil {
		return err
	}
	if len(resp.Alarms) == 0 {
		d.add(passed("alarms", "there are none"))
	}
	for _, alarm := range resp.Alarms {
		do := "Read etcd's documentation on corruption before you write anything."
		if alarm.Alarm == etcdserverpb.AlarmType_NOSPACE {
			do = "Compact, etcdctl defrag member by member, then etcdctl alarm disarm; raise --quota-backend-bytes if that is not enough."
		}
		d.add(fail("alarms", fmt.Sprintf("member %x has raised %v: etcd grants no locks until it is disarmed", alarm.MemberID, alarm.Alarm), do))
	}
	return nil
}

func (d *doctor) smallestTTL(ctx context.Context) error {
	granted, err := d.client.Grant(ctx, 1)
	if err != nil {
		return err
	}
	_, _ = d.client.Revoke(ctx, granted.ID) // if this fails, the lease expires soon
	least := time.Duration(granted.TTL) * time.Second
	f := passed("smallest TTL", "%v is the smallest that etcd grants", least)
	if least > d.ttl {
		f.Level = levelWarn
		f.Says += fmt.Sprintf(": when a holder dies, its locks stay held for that long, not for %v", d.ttl)
		f.Do = "Lower etcd's --election-timeout, if its network allows it, or plan with the longer TTL."
	}
	d.add(f)
	return nil
}

func (d *doctor) authentication(ctx context.Context) error {
	status, err := d.client.AuthStatus(ctx)
	switch {
	case err != nil:
		return err
	case status.Enabled:
		d.add(passed("authentication", "it is on"))
	default:
		d.add(warn("authentication", "it is off: everybody who can reach etcd may take and end every lock",
			"Give each service a user with permission on its prefix, as SECURITY.md shows, or make sure that nobody else can reach etcd."))
	}
	return nil
}

func (d *doctor) mayRead(ctx context.Context) error {
	end := clientv3.GetPrefixRangeEnd(d.prefix)
	_, err := d.client.Get(ctx, d.prefix+"\x00", clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	return d.permission("read", err)
}

// mayWrite deletes a key that does not exist: that writes nothing, but needs the permission.
func (d *doctor) mayWrite(ctx context.Context) error {
	_, err := d.client.Delete(ctx, d.prefix+"~doctor/nothing")
	return d.permission("write", err)
}

func (d *doctor) permission(what string, err error) error {
	switch {
	case nobody(err):
		d.add(fail("permissions", fmt.Sprintf("only users may %s %s, and no user is given", what, d.below()), giveUser))
	case denied(err):
		d.add(fail("permissions", fmt.Sprintf("%s may not %s %s", d.user(), what, d.below()),
			"As root, give one of the user's roles that permission:", shell("etcdctl role grant-permission --prefix ROLE readwrite", d.prefix)))
	case err != nil:
		return err
	default:
		d.add(passed("permissions", "%s may %s %s", d.user(), what, d.below()))
	}
	return nil
}

const (
	manyOnALease = 1000   // with more keys on one lease, leases are a WARN
	manyLeases   = 10_000 // with more leases, leases are a WARN
	fewShown     = 5      // stray keys that are named
	mostAsked    = 2000   // leases that are asked for their keys
)

// found is what was found below the prefix.
type found struct {
	held     map[clientv3.LeaseID][]*mvccpb.KeyValue // keys of contenders, by the lease in their names
	strays   int                                     // number of stray keys
	slots    int                                     // number of stray keys that take a permit out of service
	examples []string                                // stray keys
}

func (f *found) stray(kv *mvccpb.KeyValue) {
	if f.strays++; len(f.examples) < fewShown {
		f.examples = append(f.examples, string(kv.Key))
	}
	if locks.IsSlotName(strings.TrimSuffix(locks.Below(kv.Key), "/")) {
		f.slots++
	}
}

// keys checks the keys below the prefix, and their leases.
func (d *doctor) keys(ctx context.Context) {
	f := found{held: map[clientv3.LeaseID][]*mvccpb.KeyValue{}}
	var err error
	d.check(ctx, "leases", func(ctx context.Context) error {
		err = scan(ctx, d.client, d.prefix, 0, func(kv *mvccpb.KeyValue) bool {
			id, ok := contends(kv)
			switch {
			case ok:
				f.held[id] = append(f.held[id], kv)
			case strings.Contains(string(kv.Key), "~doctor/probe-"): // of another doctor that measures commits
			default:
				f.stray(kv)
			}
			return true
		})
		if err != nil {
			return err
		}
		return d.leases(ctx, f)
	})
	if err != nil {
		d.add(d.unchecked("stray keys", err))
		return
	}
	d.check(ctx, "keys of leases", func(ctx context.Context) error { return d.attached(ctx, &f) })
	d.strays(f)
}

// leases counts leases, and the keys of contenders on them.
func (d *doctor) leases(ctx context.Context, found found) error {
	resp, err := d.client.Leases(ctx)
	if err != nil {
		return err
	}
	all, most := 0, 0
	for _, keys := range found.held {
		all, most = all+len(keys), max(most, len(keys))
	}
	f := passed("leases", "%d in etcd; %d hold or wait for something here, with %d keys, at most %d on one",
		len(resp.Leases), len(found.held), all, most)
	switch {
	case most > manyOnALease:
		f.Level = levelWarn
		f.Says += ": when a lease expires, etcd serves nobody else while it deletes the keys of the lease"
		f.Do = "Spread the locks over several sessions."
	case len(resp.Leases) > manyLeases:
		f.Level = levelWarn
		f.Says += ": each lease is renewed separately"
		f.Do = "Use one session for all locks of a process, and close it at the end."
	}
	d.add(f)
	return nil
}

// attached asks etcd whether the keys of contenders are attached to the leases in their names. A key whose own record
// names another lease, or none, is a stray. A key whose record names that lease, though the lease does not list the
// key, holds or waits forever: no end of a lease deletes it.
func (d *doctor) attached(ctx context.Context, found *found) error {
	asked := 0
	for id, keys := range found.held {
		if asked++; asked > mostAsked {
			d.add(warn("keys of leases",
				fmt.Sprintf("NOT CHECKED for %d of %d leases: doctor asks only %d for their keys", len(found.held)-mostAsked, len(found.held), mostAsked),
				"To check all of them, run doctor with longer prefixes."))
			return nil
		}
		resp, err := d.client.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
		if err != nil {
			return err
		}
		on := make(map[string]bool, len(resp.Keys))
		for _, key := range resp.Keys {
			on[string(key)] = true
		}
		for _, kv := range keys {
			if on[string(kv.Key)] {
				continue
			}
			now, err := d.client.Get(ctx, string(kv.Key)) // the scan read names only; the record has the lease
			switch {
			case err != nil:
				return err
			case len(now.Kvs) == 0 || now.Kvs[0].CreateRevision != kv.CreateRevision: // deleted since the scan
			case locks.Contends(locks.Below(kv.Key), now.Kvs[0]):
				d.add(d.kept(ctx, kv))
			default:
				found.stray(kv)
			}
		}
	}
	return nil
}

// kept makes the finding on a contender's key that its lease does not list.
func (d *doctor) kept(ctx context.Context, kv *mvccpb.KeyValue) finding {
	key, name := string(kv.Key), strings.TrimSuffix(locks.Below(kv.Key), "/")
	says := fmt.Sprintf("etcd has kept the key %s without its lease: nothing will end that ", harmless(key))
	q, err := lease.Inspect(ctx, d.client, name)
	if err == nil && slices.ContainsFunc(q.Holders, func(c lease.Contender) bool { return c.Key == key }) {
		return fail("keys of leases", says+"hold", "This waits for the end of the lease, if it does exist, and deletes the key:",
			shell(fmt.Sprintf("leasefence release --mode wait --yes --token %d", kv.CreateRevision), name))
	}
	return fail("keys of leases", says+"wait", "If no process waits with this key any more, delete it:", shell("etcdctl del", key))
}

func (d *doctor) strays(found found) {
	if found.strays == 0 {
		d.add(passed("stray keys", "there are none"))
		return
	}
	names, commands := make([]string, len(found.examples)), make([]string, len(found.examples))
	for i, key := range found.examples {
		names[i], commands[i] = harmless(key), shell("etcdctl del", key)
	}
	f := warn("stray keys", fmt.Sprintf("%d keys belong to no holder and no waiter, such as %s", found.strays, strings.Join(names, ", ")),
		"If they are data, give locks a prefix of their own: keys below a lock's name slow it down. If nobody needs them, delete them:", commands...)
	if found.slots > 0 {
		f.Level = levelFail
		f.Says += fmt.Sprintf("; %d of them take permits of semaphores out of service", found.slots)
	}
	d.add(f)
}
