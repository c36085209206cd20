package mutants_test

const (
	inQueue = "internal/queue"
	inEtcd  = "internal/etcd"
	inPeers = "integration/interop"
)

var queueMutants = table{
	"internal/etcd/wire.go": {
		"a line ignores the namespace of a client": {
			"reflect.TypeOf(client.KV) != etcdsOwn {\n\t\treturn [-nil-]{+clientv3.RetryKVClient(client)+}",
			killer{inPeers, "TestNamespace_hasAllKeys", `require.Len(t, srv.Keys(t, [...]string{"a/", "b/", ""}[i])`},
		},
		"a line ignores the KVClient that a client's owner has put in": {
			"[- || remote.Type() != retrying-]",
			killer{inEtcd, "TestRawOf/another_KVClient", `require.Equal(t, row.raw, rawOf(client) != nil)`},
		},
		"a line ignores that the client's KV is another client's": {
			"!conn.[-Equal(reflect.ValueOf(client.ActiveConnection())-]{+IsValid(+})",
			killer{inEtcd, "TestRawOf/the_KV_of_another", `require.Equal(t, row.raw, rawOf(client) != nil)`},
		},
	},
	"internal/queue/key.go": {
		"a nested name's key contends": {
			"[- || bytes.IndexByte(key[len(prefix):], '/') >= 0-]",
			killer{inQueue, "FuzzContends", `require.False(t, queue.Contends(prefix, kv))`},
		},
		"a key without a lease contends": {
			"return ok && [-id == kv.Lease-]{+(id == kv.Lease || kv.Lease == 0)+}",
			killer{inQueue, "FuzzContends", `require.Equal(t, named, queue.Contends(below, kv)`},
		},
		"any lease's key contends": {
			"return ok && id [-== kv.Lease-]{+!= 0+}",
			killer{inQueue, "FuzzContends", `require.Equal(t, named, queue.Contends(below, kv)`},
		},
		"a key of an unknown class excludes nobody": {
			"[-'g' <= child[0] && child[0] <= 'z'-]{+false+}",
			killer{inQueue, "FuzzContends", `require.Equal(t, named, queue.Contends(below, kv)`},
		},
		"a reader waits for readers": {
			"return [-readers-]{+notContenders+}",
			killer{inQueue, "TestQueue_Enter_readersAlone", `require.Equal(t, queue.Ahead{None: true}, ahead)`},
		},
		"a reader waits for nobody": {
			`return [-readers-]{+"\x01"+}`,
			killer{inQueue, "FuzzQueue_Await", `"it is granted before its turn"`},
		},
	},
	"internal/queue/scan.go": {
		"a reader overtakes a waiting writer": {
			"{+if e.Shared {\n\t\tkvs = kvs[len(kvs)-1:]\n\t}\n\t+}ahead := nearest(kvs, int64(len(kvs)))\n",
			killer{inQueue, "FuzzQueue_Await", `"it is granted before its turn"`},
		},
		"Await: waits for a key whose name looks like a contender's but whose lease is another": {
			"[-check && ahead.first().key == watched-]{+false && check+} && !Contends",
			killer{inQueue, "FuzzQueue_Await", `"its turn has come: %s of %d"`},
		},
		"Await: the second nearest counts as the owner, though others are ahead of it": {
			"contender{string(kvs[1].Key), kvs[1].CreateRevision}, [-all == 2-]{+true+}",
			killer{inQueue, "TestQueue_Await_keptWatchesOfALongQueue/both_give_up", `requirePending(t, got)`},
		},
		"Await: the owner's end is the turn though a key between may be put back on its lease": {
			"owner := [-len(r.keys) == 1-]{+kv == r.keys[len(r.keys)-1]+}",
			killer{inQueue, "TestQueue_Await_putBackBehindTheOwner", `requirePending(t, got)`},
		},
		"Await: reads without a check of its own key": {
			"a.Txn([-[]clientv3.Cmp{e.Held()}-]{+nil+}, reads, nil)",
			killer{inQueue, "TestQueue_Await_ownKeyIsGone", `queue.ErrGone`},
		},
		"Await: a wait does not mark the queue as contended": {
			"q.[-left, q.brisk = contendedLasts,-]{+brisk =+} brisk",
			killer{inQueue, "TestQueue_Await_keptWatchAfterHandOver", `require.Equal(t, []int{1, 0}, []int{requests, watches}, "round %d", round)`},
		},
	},
	"internal/queue/enter.go": {
		"a reader's retry enters a second time": {
			"return []clientv3.Cmp{e.empty()[-, e.absent()-]}",
			killer{inQueue, "TestQueue_Enter_readersAlone", `require.Equal(t, revs[0], again.Rev`},
		},
		"Enter: forgets that a queue was not empty": {
			"[-q.contended.met(e.rivals(), true) // e may have entered-]",
			killer{inQueue, "TestQueue_Enter_contentionThatHasJustEnded", `require.Equal(t, []int{2}, ops)`},
		},
		"Enter: an ambiguous transaction is retried without a comparison": {
			"txn.[-If, txn.Else = append(txn.If, e.absent()),-]{+Else =+} append",
			killer{inQueue, "TestQueue_Enter_taken", `require.Equal(t, rev, e.srv.Rev())`},
		},
		"HandOver: overwrites the next contender's key": {
			"txn.[-If, txn.Else = append(txn.If, e.absent()), append(txn.Else, etcd.Get(e.Key))-]{+Else = append(txn.Else, etcd.Get(e.Key))\n\t\tif leaving == nil {\n\t\t\ttxn.If = append(txn.If, e.absent())\n\t\t}+}",
			killer{inQueue, "TestQueue_HandOver_notDone", `require.False(t, done)`},
		},
		"HandOver: does not check that the owner's key is still there": {
			"[-append(txn.If, leaving.Held())-]{+txn.If+}",
			killer{inQueue, "TestQueue_HandOver_notDone", `require.False(t, done)`},
		},
		"Enter: another's key counts as its own": {
			"[-kv.Lease == int64(e.Lease) && kv.CreateRevision > e.After && Text(kv) == value-]{+true+}",
			killer{inQueue, "TestQueue_Enter_taken", `require.ErrorIs(t, err, queue.ErrTaken)`},
		},
		"Enter: an old key of its own counts as the new one": {
			"[- && kv.CreateRevision > e.After-]",
			killer{inQueue, "TestQueue_Enter_taken/an_old_one", `require.ErrorIs(t, err, queue.ErrTaken)`},
		},
		"Enter: an existing key always counts as another's": {
			"[-kv.Lease == int64(e.Lease) && kv.CreateRevision > e.After && Text(kv) == value-]{+false+}",
			killer{inQueue, "TestQueue_requestSentTwice", `require.NoError(t, err, "the key is its own")`},
		},
		"TryRLock takes another reader for the holder": {
			"q.[-oldest(a, e.outside()-]{+Owner(a, e.Prefix+})",
			killer{inQueue, "FuzzQueue_Await", `require.Equal(q.t, excluding.Key, string(owner.Key), "the oldest one")`},
		},
		"TryLock, TryLockAll: a contender that is not first stays in its queues": {
			"[-_, err := q.Leave(a, set)\n\tif err == nil {\n\t\tentered(set, 0)\n\t}\n\treturn owners, err-]{+return owners, nil+}",
			killer{inQueue, "TestQueue_TryEnterAll_race", `require.Equal(t, keys, e.keys())`},
		},
		"TryLock makes etcd compare all nested names": {
			"[-byName[i] = byName[i] || q.contended.mixed(e.rivals())-]",
			killer{inQueue, "TestQueue_nestedNamesAreCheap", `require.Empty(t, c.RangeEnd)`},
		},
		"a set that leaves may take its key for a hold": {
			"[-set[i].disown()-]{+_ = set[i]+}",
			killer{inLease, "TestTurns_lateRequestToLeave/the_attempt_is_repeated", `require.FailNow(t, "too early"`},
		},
		"Enter: two contenders of one queue share a commit": {
			"[-txn.Queue = set[0].Prefix-]",
			killer{inQueue, "TestQueue_Enter_oneQueueIsNotShared", `require.Less(t, before.Rev, list[i+1].Rev)`},
		},
	},
	"internal/queue/list.go": {
		"a key on another lease contends if its name looks like a contender's": {
			`"[-=-]{+!=+}", clientv3.LeaseID(id)`,
			killer{inQueue, "FuzzQueue_Await", `require.Equal(q.t, excluding.Key, string(owner.Key), "the oldest one")`},
		},
		"a page begins after the next key": {
			`return string(key) + "[-\x00-]{+~+}"`,
			killer{inQueue, "TestChildren", `require.Equal(t, want, got)`},
		},
		"a nested name with many keys is read to its end": {
			`if dir := nestedIn(prefix, key); [-dir != ""-]{+false+} {`,
			killer{inQueue, "TestChildren", `require.Len(t, e.c.Calls(fakeetcd.Get), 3)`},
		},
	},
	"internal/queue/slots.go": {
		"a permit that leaves may take its key for a hold": {
			"[-e.disown()-]{+_ = e+}",
			killer{inLease, "TestTurns_lateRequestToLeave/a_permit", `require.FailNow(t, "too early"`},
		},
	},
	"internal/etcd/lane.go": {
		"a line does not look again whether a request is stuck": {
			"\t\tl.leave(round)\n[-\t\tl.await()\n-]",
			killer{"internal/etcd", "TestLine_lanes_mostGiveUpBesideAStuckRequest", `require.FailNow(t, "a caller hangs"`},
		},
		"Commit: goroutines that compute delay each request many times": {
			" || [-time.Since(began) > gatherFor-]{+began.IsZero()+}",
			killer{inEtcd, "TestLine_gather_whereOthersCompute", `require.Less(t, l.gather(8), yields/4)`},
		},
		"Commit: a batch does not wait while callers keep coming": {
			"here[-, idle = now, 0-]{+ = now+}",
			killer{inEtcd, "TestLine_gather_whileTheyKeepComing", `require.Greater(t, l.gather(8), 2*yields)`},
		},
		"Commit: a lane is reused while its request is under way": {
			"if round [-==-]{+<=+} l.round {",
			killer{inEtcd, "TestLine_lanes_stuckOneReturns", `require.Empty(t, sent(), "they wait for the one that is under way")`},
		},
	},
	"internal/queue/await.go": {
		"Await: the end of the nearest is the turn, whether or not it was the owner": {
			"case end == Deleted && [-ahead.Owner && -]",
			killer{inQueue, "FuzzQueue_Await", `"it is granted before its turn"`},
		},
		"Await: each event in the queue causes a read": {
			"\t\t\t\tend[-, written = w.ended(e.Prefix, c.rev-]{+ = Overwritten\n\t\t\t\treturn q.watch(ctx, e.Prefix, func(_ context.Context, w *watch) error {\n\t\t\t\t\tselect {\n\t\t\t\t\tcase <-w.events:\n\t\t\t\t\tcase <-time.After(time.Second):\n\t\t\t\t\t}\n\t\t\t\t\treturn nil\n\t\t\t\t}, clientv3.WithPrefix()+})\n",
			killer{inLease, "TestSession_Lock_requestsATurn/8", `require.LessOrEqual(t, a, most)`},
		},
		"Await: an event of an earlier key is the turn": {
			"case [-ev.Kv.ModRevision <= rev-]{+false+}:",
			killer{inQueue, "FuzzQueue_Await", `"it is granted before its turn"`},
		},
		"Await: no read after the watch exists": {
			"if ![-kept || !-]known {",
			killer{inQueue, "FuzzQueue_Await", `"its turn has come: %s of %d"`},
		},
		"Await: a kept watch is used though another wait has taken the event": {
			"\t\t\t[-w.since = max(w.since, ev.Kv.ModRevision)-]{+_ = ev+}",
			killer{inQueue, "FuzzQueue_Await", `"its turn has come: %s of %d"`},
		},
		"Await: a watch is kept after a long wait": {
			" && [-time.Since(began) < shortWait-]{+!began.IsZero()+}\n",
			killer{inQueue, "TestQueue_Await_keptWatchOfALongWait", `require.Len(t, e.c.Calls(fakeetcd.Watch), watches+2+more)`},
		},
		"Await: a long wait whose last part was short makes the queue brisk": {
			"short = [-short && -]!broke",
			killer{inQueue, "TestQueue_Await_longWaitThatEndsSoon", `require.Equal(t, 2, watches, "round %d", round)`},
		},
		"AwaitOwn: the owner's end is the turn of a candidate that was passed over": {
			"(!own || [-!ahead.written && !written-]{+written || true+}):",
			killer{inQueue, "FuzzQueue_Await", `"it was passed over"`},
		},
		"Await: the owner's end is the turn though both keys are on one lease": {
			"[- && !e.wentWith(c)-]",
			killer{inQueue, "TestQueue_Await_ownLeaseIsRevoked", `require.ErrorIs(t, receive(t, got).err, queue.ErrGone)`},
		},
		"Await: an owner whose key was taken off its lease never comes back": {
			"known = [-end == Deleted && -]ahead.beforeOwner",
			killer{inQueue, "TestQueue_Await_displacedOwner/by_kept_watches_that_show_puts", `requirePending(t, got)`},
		},
		"AwaitOwn: ignores that the owner's key was written before the wait": {
			"![-ahead.written && !-]written",
			killer{inQueue, "FuzzQueue_Await", `"it was passed over"`},
		},
		"AwaitOwn: the owner's end is the turn of a candidate that was passed over with another": {
			"ahead.beforeOwner[- && !own-]",
			killer{inQueue, "FuzzQueue_Await", `"it was passed over"`},
		},
		"a waiter behind a key that was taken off its lease waits forever": {
			"case [-!Contends(prefix, ev.Kv)-]{+false+}:",
			killer{inQueue, "FuzzQueue_Await", `"its turn has come: %s of %d"`},
		},
		"Await: a kept watch is used without a time limit": {
			"w.timer.[-Reset(shortWait-]{+Stop(+})",
			killer{inQueue, "TestQueue_Await_keptWatchOfALongWait", `require.Len(t, e.c.Calls(fakeetcd.Watch), watches+1)`},
		},
		"Await: a kept watch is used though it may have begun after the contender's end": {
			"w == nil ||[- c.rev <= w.since ||-]",
			killer{inQueue, "FuzzQueue_Await", `require.True(q.t, `}, // by chance a turn, or the end of an own key, is noticed late
		},
		"AwaitOwn: a kept watch is used that does not show writes": {
			"[- || puts && !w.puts-]",
			killer{inQueue, "FuzzQueue_Await", `"it was passed over"`},
		},
		"Await: a kept watch outlives its lease": {
			"Watch([-q.Life-]{+context.WithoutCancel(q.Life)+})",
			killer{inQueue, "TestQueue_Await_keptWatchEndsWithTheLease", `require.Zero(t, e.srv.Watchers())`},
		},
		"Await: a kept watch ends with the context of the previous wait": {
			"if [-!w.detach() || -]w.ctx",
			killer{inQueue, "TestQueue_Await_keptWatch", `require.Equal(t, round, e.srv.Watchers())`},
		},
		"Await: a wait on a kept watch does not end with its context": {
			"w.detach = context.AfterFunc([-ctx-]{+context.WithoutCancel(ctx)+}, w.cancel)\n\treturn w\n",
			killer{inQueue, "FuzzQueue_Await", `"it gives up at once"`},
		},
		"Await: keeps any number of watches": {
			"[- || len(k.watches) >= mostKept-]",
			killer{inQueue, "TestQueue_Await_keptWatchesAreFew", `require.Equal(t, 64, e.srv.Watchers())`},
		},
		"Await: keeps watches for as long as the lease lives": {
			"w.timer.[-Reset(keptFor-]{+Stop(+})",
			killer{inQueue, "TestQueue_Await_keptWatch", `require.Zero(t, e.srv.Watchers(), "it is not kept for ever")`},
		},
	},
	"internal/etcd/line.go": {
		"Commit: a hedged request carries transactions of callers that do not hedge": {
			"[- && (c.many > 1) == (d.many > 1)-]",
			killer{inEtcd, "TestLine_attempt_copies", `require.Equal(t, []int{2, 2, 2, 1}, carries)`},
		},
		"Commit: the refusal of a part hides that the whole may have been applied": {
			"[-err-]{+_+} = Repeated(err)",
			killer{inEtcd, "TestLine_lost_thenRefused", `require.Equal(t, tc.refused, etcd.Refused(o.err))`},
		},
		"Commit: an answer's revision is compared with those seen after the request was sent": {
			"\t\t{+before = l.opts.Highest()\n\t\t+}l.opts.Saw(before, resp.Header.Revision)",
			killer{inEtcd, "TestLine_answersThatCross", `require.Equal(t, [][2]int64{{rev, rev + 1}}, seen)`},
		},
	},
	"internal/etcd/attempt.go": {
		"Do: hedges a request that was refused": {
			"[-if !Refused(err) && !TooMuch(err) { // else an endpoint has answered\n\t\t\tcopies = min(copies+1, c.endpoints())\n\t\t}-]{+copies = min(copies+1, c.endpoints())+}",
			killer{inEtcd, "TestDo_copies/not_sent", `require.Equal(t, tc.want, got)`},
		},
		"Txn: among hedged requests, a refusal counts more than an unknown outcome": {
			"(final(o.err) || Refused([-best-]{+o+}.err))",
			killer{inEtcd, "TestTxn_firstAnswerOfTheCopies/one_unknown,_two_are_refused", `require.ErrorContains(t, err, tc.err.Error())`},
		},
	},
	"internal/queue/guard.go": {
		"Guards: its own put ends a handle": {
			"case gone, ev.Kv.ModRevision [-<=-]{+<+} e.Rev:",
			killer{inQueue, "FuzzQueue_Await", `"the guard reports no write that was not"`},
		},
		"Guards: an event of an earlier use of a key counts for the present one": {
			"case gone[-, ev.Kv.ModRevision <= e.Rev-]:",
			killer{inQueue, "FuzzQueue_Await", `"the guard reports the end of the key"`},
		},
		"Guards: a refused watch is not retried": {
			"[-b.Longest = w.Every\n\t\t\tw.warn(e, \"watched\", err)-]{+w.warn(e, \"watched\", err)\n\t\t\treturn+}",
			killer{inQueue, "TestGuards_deniedForAMoment", `e.requireWatchers(t, 3)`},
		},
		"Guards: a key is not read when its watch has broken": {
			"[-w.mu.Lock()\n\t\tw.read(e)\n\t\tw.mu.Unlock()\n\t\t-]_ = b.Sleep",
			killer{inQueue, "TestGuards_nextWatchHangs", `g.requireNotices(t, deleted(list[0]))`},
		},
	},
	"internal/etcd/streams.go": {
		"Streams: a watch stays registered with its caller": {
			"\t\t[-done()-]{+_ = done+}\n\t\ts.mu.Lock()",
			killer{inEtcd, "TestStreams_Watch_leavesNothingRegistered", `require.Zero(t, s.Registered(ctx))`},
		},
		"the end of a wait waits for etcd's client": {
			"\t[-case <-ctx.Done():\n\t-]}\n\treturn resp, ok",
			killer{inLease, "TestSession_waitsEndWhileTheClientReconnects/for_a_lock", `require.Len(t, ended, 1, "it waits for the client")`},
		},
		"Streams: any number of stream names": {
			"s.n[-%streamNames-]",
			killer{inEtcd, "TestStreams_Watch_hasFewNames", `require.`},
		},
		"Streams: a suspect stream is kept": {
			"[-if present {\n\t\tst.end()\n\t}-]{+_ = present+}",
			killer{inEtcd, "TestStreams_Watch_endsWithItsCallerOrItsStream", `require.Error(t, bySuspect.Err())`},
		},
		"each watch on a slow server ends all others": {
			"s.stretch = [-min(1+int(2*time.Since(st.waiting)/s.patience), longestStretch)-]{+1+}",
			killer{inEtcd, "TestStreams_Watch_waitsForASlowServer", `require.Zero(t, givenUp, "%v", took)`},
		},
	},
	"internal/etcd/verdict.go": {
		"Unavailable counts as a refusal": {
			"case codes.{+Unavailable, codes.+}InvalidArgument, codes.OutOfRange,",
			killer{inEtcd, "TestVerdict_ofServers", `require.Equal(t, want, verdict{`},
		},
		"NOSPACE counts as not applied": {
			"codes.Unauthenticated, codes.Unimplemented{+, codes.ResourceExhausted+}:",
			killer{inEtcd, "TestVerdict_ofServers", `require.Equal(t, want, verdict{`},
		},
	},
}

// asEtcd is the test that compares the fake etcd with a real one.
var asEtcd = killer{"integration/differential", "TestFake", `require.Equal(t, list(etcd, answers), list(fake, answers)`}

var fakeMutants = table{
	"internal/fakeetcd/txn.go": {
		"fake etcd: a deletion of nothing makes a revision": {
			"[-\tif len(t.changes) == 0 {\n\t\treturn\n\t}\n-]",
			asEtcd,
		},
		"fake etcd: the value of a missing key is empty": {
			"return [-c.Target != pb.Compare_VALUE && -]compareKV(",
			asEtcd,
		},
	},
	"internal/fakeetcd/watch.go": {
		"fake etcd: a watch of the past misses its first revision": {
			"w.minRev, w.unsynced = w.start{++1+}, true",
			asEtcd,
		},
	},
}
