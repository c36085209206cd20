package mutants_test

const (
	inQueue  = "internal/queue"
	inRetry  = "internal/retry"
	inCommit = "internal/commit"
	inLoad   = "integration/scenario/load"
)

var queueMutants = []mutant{
	{
		name: "raw prefix match",
		file: "internal/queue/key.go",
		old:  `return kv.Lease != 0 && !strings.Contains(child, "/") &&` + "\n\t\t" + `strings.HasPrefix(child, strconv.FormatInt(kv.Lease, 16))`,
		new:  `return child != string(kv.Key)`,
		by:   killer{inLease, "TestSession_Lock_namesAreIndependent", `e.lock(t, name)`},
	},
	{
		name: "a key without a lease contends",
		file: "internal/queue/key.go",
		old:  `return kv.Lease != 0 && !`,
		new:  `return !`,
		by:   killer{inQueue, "TestContends", `require.Equal(t, tc.contends, queue.Contends("a/", kv))`},
	},
	{
		name: "any lease's key contends",
		file: "internal/queue/key.go",
		old:  `strings.HasPrefix(child, strconv.FormatInt(kv.Lease, 16))`,
		new:  `strings.HasPrefix(child, "")`,
		by:   killer{inQueue, "TestContends", `require.Equal(t, tc.contends, queue.Contends("a/", kv))`},
	},
	{
		name: "Await: the turn has come when the nearest goes",
		file: "internal/queue/await.go",
		old:  "case end == deleted && ahead.Owner:",
		new:  "case end == deleted:",
		by:   killer{inQueue, "TestQueue_Await_predecessorGivesUp", `requirePending(t, three)`},
	},
	{
		name: "Await: each event in the queue is a reason to look",
		file: "internal/queue/await.go",
		old:  "return nil\n\t\t})\n\t\tswitch {\n\t\tcase err != nil:\n\t\t\treturn err\n\t\tcase end == deleted && ahead.Owner:",
		new: "return nil\n\t\t}, clientv3.WithRange(clientv3.GetPrefixRangeEnd(e.Prefix)))\n\t\tswitch {\n\t\tcase err != nil:\n\t\t\treturn err\n" +
			"\t\tcase false:",
		by: killer{inLoad, "TestLoad_twoThousandWaiters/lock,_20_clients,_500_waiters", `require.Less(t, asked, 10*len(c.waiters))`},
	},
	{
		name: "Await: hand-over by a stale event",
		file: "internal/queue/await.go",
		old:  "case ev.Kv.ModRevision <= rev:",
		new:  "case false:",
		by:   killer{inQueue, "TestQueue_Await_staleEvent", `requirePending(t, two)`},
	},
	{
		name: "Await: no look after the watch exists",
		file: "internal/queue/await.go",
		old:  "if err := retry.Do(ctx, q.Client, q.Attempt, look); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t\tif ahead",
		new:  "if ahead",
		by:   killer{inQueue, "TestQueue_Await_predecessorGoesBeforeTheWatch", `receive(t, e.await(t.Context(), second))`},
	},
	{
		name: "Await: one's own key is not looked for",
		file: "internal/queue/scan.go",
		old:  "retry.Txn(ctx, q.Client, []clientv3.Cmp{e.Held()}, reads, nil)",
		new:  "retry.Txn(ctx, q.Client, nil, reads, nil)",
		by:   killer{inQueue, "TestQueue_Await_ownKeyIsGone", `queue.ErrGone`},
	},
	{
		name: "Commit: copies of a request carry those who do not expect to be carried out before",
		file: "internal/commit/line.go",
		old:  " && (c.many > 1) == (d.many > 1)",
		new:  "",
		by:   killer{inCommit, "TestLine_attempt_copies", `require.Equal(t, []int{2, 2, 2, 1}, carries)`},
	},
	{
		name: "Do: copies of a request that was refused",
		file: "internal/retry/retry.go",
		old:  "if !Refused(err) {\n\t\t\tcopies = min(copies+1, limit.endpoints)\n\t\t}",
		new:  "copies = min(copies+1, limit.endpoints)",
		by:   killer{inRetry, "TestDo_copies/not_sent", `require.Equal(t, tc.want, got)`},
	},
	{
		name: "Txn: of copies, a refusal counts for more than one that may have been carried out",
		file: "internal/retry/copies.go",
		old:  "(final(o.err) || Refused(best.err))",
		new:  "(final(o.err) || Refused(o.err))",
		by:   killer{inRetry, "TestTxn_firstAnswerOfTheCopies/one_unknown,_two_are_refused", `require.ErrorContains(t, err, tc.err.Error())`},
	},
	{
		name: "Enter: an ambiguous transaction repeated blindly",
		file: "internal/queue/enter.go",
		old:  "If:    []clientv3.Cmp{e.absent()},\n\t\tThen:  []clientv3.Op{e.put(value), clientv3.OpGet(e.Prefix, newestTwo...)},",
		new:  "Then:  []clientv3.Op{e.put(value), clientv3.OpGet(e.Prefix, newestTwo...)},",
		by:   killer{inQueue, "TestQueue_Enter_again", `require.Equal(t, tc.ahead, ahead)`},
	},
	{
		name: "Enter: two of one queue in one commit",
		file: "internal/queue/enter.go",
		old:  "Queue: e.Prefix,\n\t\tIf:    []clientv3.Cmp{e.absent()},",
		new:  "If:    []clientv3.Cmp{e.absent()},",
		by:   killer{inQueue, "TestQueue_Enter_oneQueueIsNotShared", `require.Less(t, before.Rev, list[i+1].Rev)`},
	},
	{
		name: "TryEnter: who is not the first stays in the queue",
		file: "internal/queue/enter.go",
		old:  "_, err = q.Leave(ctx, e)\n",
		new:  "",
		by:   killer{inQueue, "TestQueue_TryEnter_race", `require.NotContains(t, e.keys(), e.entry("us").Key)`},
	},
	{
		name: "HandOver: overwrites the next one's key",
		file: "internal/queue/enter.go",
		old:  "append(also, e.Held(), next.absent())",
		new:  "append(also, e.Held())",
		by:   killer{inQueue, "TestQueue_HandOver_notDone", `require.False(t, done)`},
	},
	{
		name: "HandOver: without the place that is handed over",
		file: "internal/queue/enter.go",
		old:  "append(also, e.Held(), next.absent())",
		new:  "append(also, next.absent())",
		by:   killer{inQueue, "TestQueue_HandOver_notDone", `require.False(t, done)`},
	},
	{
		name: "StepBack: the owner steps back",
		file: "internal/queue/candidate.go",
		old:  `return q.replace(ctx, e, next, value, clientv3.Compare(clientv3.CreateRevision(ahead.Key), "=", ahead.Rev))`,
		new:  `return q.replace(ctx, e, next, value)`,
		by:   killer{inQueue, "TestQueue_StepBack_notDone", `require.False(t, done)`},
	},
	{
		name: "LeaveTo: whoever is next",
		file: "internal/queue/candidate.go",
		old:  "If:    []clientv3.Cmp{e.Held(), next.Held()},",
		new:  "If:    []clientv3.Cmp{e.Held()},",
		by:   killer{inQueue, "TestQueue_LeaveTo", `require.Equal(t, [2]bool{tc.done, tc.gone}, [2]bool{done, gone})`},
	},
	{
		name: "Write: a late request undoes a later one",
		file: "internal/queue/candidate.go",
		old:  `If:   []clientv3.Cmp{e.Held(), clientv3.Compare(clientv3.ModRevision(e.Key), "=", mod)},`,
		new:  `If:   []clientv3.Cmp{e.Held()},`,
		by:   killer{inQueue, "TestQueue_Write", `require.Zero(t, again)`},
	},
	{
		name: "Guards: told of one's own put",
		file: "internal/queue/guard.go",
		old:  "case e == nil, ev.Kv.ModRevision <= e.Rev:",
		new:  "case e == nil, ev.Kv.ModRevision < e.Rev:",
		by:   killer{inQueue, "TestGuards_areNotFooledByTheirOwnPut", `g.requireTold(t)`},
	},
	{
		name: "Guards: a key used again is taken for the earlier one",
		file: "internal/queue/guard.go",
		old:  "case e == nil, ev.Kv.ModRevision <= e.Rev:",
		new:  "case e == nil:",
		by:   killer{inQueue, "TestGuards_staleEvents", `g.requireTold(t)`},
	},
	{
		name: "Streams: a suspect stream is kept",
		file: "internal/queue/streams.go",
		old:  "st.stuck.Stop()\n\ts.mu.Unlock()\n\tst.cancel()",
		new:  "st.stuck.Stop()\n\ts.mu.Unlock()",
		by:   killer{inQueue, "TestStreams_Suspect", `require.Less(t, got.at, time.Minute+100*time.Millisecond)`},
	},
	{
		name: "an unavailable server is taken for a refusal",
		file: "internal/retry/retry.go",
		old:  "codes.Unauthenticated, codes.OutOfRange,",
		new:  "codes.Unauthenticated, codes.Unavailable, codes.OutOfRange,",
		by:   killer{inRetry, "TestTransientAndRefused", `require.Equal(t, tc.refused, retry.Refused(err)`},
	},
	{
		name: "a server without space is taken to have done nothing",
		file: "internal/retry/retry.go",
		old:  "	if TooMuch(err) {\n		return false\n	}\n",
		new:  "",
		by:   killer{inRetry, "TestTransientAndRefused", `require.Equal(t, tc.refused, retry.Refused(err)`},
	},
	{
		name: "who waits behind a key that was taken off its lease waits for good",
		file: "internal/queue/await.go",
		old:  "case !Contends(prefix, ev.Kv):",
		new:  "case false:",
		by:   killer{inQueue, "TestQueue_Await_keyIsTakenOffItsLease", `require.NoError(t, receive(t, waits).err)`},
	},
}
