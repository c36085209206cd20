package mutants_test

const (
	inElection = "election"
	inK8slock  = "election/k8slock"
)

var electionMutants = []mutant{
	{
		name: "Run: release before lead has returned",
		file: "election/run.go",
		old:  "work, done := scope.Work(l.Context(), ctx)\n",
		new:  "work, done := scope.Work(l.Context(), ctx)\n\tdefer context.AfterFunc(work, func() { _ = l.tenure.Resign(context.WithoutCancel(ctx)) })()\n",
		by:   killer{inElection, "TestRun_contextEndsWhileItLeads", `next.requireWaiting(t)`},
	},
	{
		name: "Transfer: without the candidate at the front",
		file: "election/leadership.go",
		old:  "if err := l.tenure.Promote(ctx, value); err != nil {\n\t\treturn translate(err)\n\t}\n",
		new:  "",
		by:   killer{inElection, "TestLeadership_Transfer_fails", `require.NoError(t, l.Err())`},
	},
	{
		name: "Transfer: lets go as Resign does",
		file: "election/leadership.go",
		old:  "err = l.tenure.ResignTo(ctx, to)",
		new:  "err = l.tenure.Resign(ctx)\n\t\t_ = to",
		by:   killer{inElection, "TestLeadership_Transfer_candidateGoesAtTheLastMoment", `require.ErrorIs(t, err, tc.want)`},
	},
	{
		name: "k8slock: release of the successor's record",
		file: "election/k8slock/write.go",
		old:  "case release && !l.ours:",
		new:  "case release && !l.ours && t == nil:",
		by:   killer{inK8slock, "TestLock_releaseLeavesTheSuccessorAlone_whileItsLeaseLives", `require.Error(t, a.Update(t.Context(), released()))`},
	},
	{
		name: "k8slock: a record is replaced whatever has become of it",
		file: "election/k8slock/write.go",
		old:  `unchanged := clientv3.Compare(clientv3.ModRevision(l.key), "=", l.revision)`,
		new:  `unchanged := clientv3.Compare(clientv3.ModRevision(l.key), ">", int64(-1))`,
		by:   killer{inK8slock, "TestLock_errorsOfTheAPI", `require.True(t, apierrors.IsConflict(`},
	},
	{
		name: "k8slock: deadline counted from the answer",
		file: "election/k8slock/write.go",
		old:  "sent := clock.System.Now()\n\t\t\tanswer, err := request(ctx)\n",
		new:  "answer, err := request(ctx)\n\t\t\tsent := clock.System.Now()\n",
		by:   killer{inK8slock, "TestLock_localDeadline", `require.Equal(t, leaseDuration-margin, time.Since(sent)`},
	},
	{
		name: "k8slock: a write whose answer was lost is taken for somebody else's",
		file: "election/k8slock/write.go",
		old:  "\t\t\t\trev = kv.ModRevision\n",
		new:  "\t\t\t\t_ = kv.ModRevision\n",
		by:   killer{inK8slock, "TestLock_renewalGoesThroughLostMessages/answer_swallowed_Txn", `require.NoError(t, a.Update(t.Context(), a.leaderRecord()))`},
	},
	{
		name: "k8slock: somebody else's record with the same bytes is taken for the own one",
		file: "election/k8slock/write.go",
		old:  "kv.Lease == int64(lease) && bytes.Equal(kv.Value, value)",
		new:  "bytes.Equal(kv.Value, value)",
		by:   killer{inK8slock, "TestLock_conflictBetweenTwoAttempts/acquisition_request", `require.True(t, apierrors.IsAlreadyExists(`},
	},
	{
		name: "k8slock: what an earlier call wrote counts as a renewal",
		file: "election/k8slock/write.go",
		old:  "\tl.writes++\n",
		new:  "",
		by:   killer{inK8slock, "TestLock_writeOfAnEarlierCallIsNoRenewal", `require.True(t, apierrors.IsConflict(`},
	},
	{
		name: "a candidate that steps back in copies takes its own key for somebody else's",
		file: "lease/candidate.go",
		old:  "next.late = next.late || retry.Copies(ctx) > 1 ",
		new:  "",
		by:   killer{inElection, "TestCampaign_stepsBack_inCopies", `s.waiting.requireWaiting(t)`},
	},
	{
		name: "k8slock: a late renewal revives a tenure",
		file: "election/k8slock/tenure.go",
		old:  "if !t.live() {\n\t\treturn false\n\t}\n\tt.mu.Lock()\n\tt.from",
		new:  "t.mu.Lock()\n\tt.from",
		by:   killer{inK8slock, "TestLock_renewalAcrossTheDeadline", `a.leaderRecord()), k8slock.ErrLost)`},
	},
	{
		name: "k8slock: a host that has woken up goes on to lead for half a second",
		file: "election/k8slock/tenure.go",
		old:  "look := clock.System.NewTimer(",
		new:  "look := clock.Clock{Boot: clock.System.Boot}.NewTimer(",
		by:   killer{inK8slock, "TestLock_suspendedHost/alarms", `require.LessOrEqual(t, time.Since(began), 5*time.Second+1+late)`},
	},
	{
		name: "k8slock: a deadline that is brought forward is not looked at",
		file: "election/k8slock/tenure.go",
		old:  "\tcase t.extended <- struct{}{}:\n",
		new:  "",
		by:   killer{inK8slock, "TestLock_shorterRecord", `require.Equal(t, 4500*time.Millisecond, time.Since(began))`},
	},
	{
		name: "k8slock: a second tenure while the elector leads",
		file: "election/k8slock/write.go",
		old:  "if leading {",
		new:  "if leading && last == nil {",
		by:   killer{inK8slock, "TestLock_noSecondTenureWhileTheElectorLeads", `a.leaderRecord()), k8slock.ErrLost)`},
	},
}
