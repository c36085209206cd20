package mutants_test

const (
	inElection = "election"
	inK8slock  = "election/k8slock"
)

var electionMutants = table{
	"election/run.go": {
		"Run: releases before lead has returned": {
			"work, done := scope.Work(l.Context(), ctx)\n{+\tdefer context.AfterFunc(work, func() { _ = l.hold.Release(context.WithoutCancel(ctx), nil) })()\n+}",
			killer{inElection, "TestRun_whatEndedFirstDecides", `next.requireWaiting(t)`},
		},
	},
	"election/leadership.go": {
		"Transfer: only resigns": {
			"[-deleted, missed, err = l.handOver(ctx, to)-]{+_ = to+}",
			killer{inElection, "TestLeadership_Transfer_meetsAFault", `require.Equal(t, tc.errs == nil, err == nil, "%v", err)`},
		},
		"Proclaim: a late request undoes a later one": {
			`If:   []clientv3.Cmp{e.Held()[-, clientv3.Compare(clientv3.ModRevision(e.Key), "=", l.written)-]},`,
			killer{inElection, "TestLeadership_Proclaim_lateRequestUndoesNothing", `require.Equal(t, []string{"second"}, values(p.srv))`},
		},
		"Proclaim: hides a request to hand over": {
			"[-\t\tl.as.touched(l.written) // the watch may show the next write only\n-]",
			killer{inElection, "TestLeadership_Proclaim_isNoRequestToHandOver", `require.ErrorIs(t, l.Err(), election.ErrHandedOver)`},
		},
	},
	"election/handover.go": {
		"Transfer: does not check that the candidate waits": {
			"[-if err != nil {\n\t\t// Another call may have ended the leadership meanwhile, and taken the candidate out of the queue.\n\t\tif ended := l.Err(); ended != nil {\n\t\t\treturn ended\n\t\t}\n\t\treturn err\n\t}\n-]",
			killer{inElection, "TestLeadership_Transfer_fails", `require.NoError(t, l.Err())`},
		},
		"Transfer: does not compare the candidate's key": {
			"\t\t[-h.next-]{+e+}.Held(),\n",
			killer{inElection, "TestLeadership_Transfer_meetsAFault", `require.Equal(t, tc.errs == nil, err == nil, "%v", err)`},
		},
		"Transfer: does not compare the leader's own key": {
			`[-e.Held(), clientv3.Compare(clientv3.LeaseValue(e.Key), "=", e.Lease-]{+h.next.Held(), h.next.Held(+}),`,
			killer{inElection, "TestLeadership_Transfer_meetsAFault", `require.Equal(t, tc.errs == nil, err == nil, "%v", err)`},
		},
		"Transfer: does not write the leader's key before it passes candidates over": {
			"if [-len(h.between) > 0-]{+false+} {",
			killer{inElection, "TestCampaign_entersAgain_asTheLeaderGoes/not_yet", `b.requireWaiting(t)`},
		},
		"Transfer: deletes the keys of candidates between without a comparison": {
			"clientv3.OpTxn([-[]clientv3.Cmp{b.Held()}-]{+nil+},",
			killer{inElection, "TestLeadership_Transfer_meetsAFault/one_between_is_another's", `require.Len(t, s.srv.Keys(s.keys[tc.stays]), 1)`},
		},
		"a candidate asks a later leader to hand over": {
			`clientv3.Compare(clientv3.CreateRevision(string(leader.Key)), "[-=", leader.CreateRevision-]{+!=", 0+})`,
			killer{inElection, "TestCampaign_asks", `require.Equal(t, asked, kv.ModRevision != kv.CreateRevision, string(kv.Key))`},
		},
		"a new leader does not look for candidates of a higher priority": {
			"[-c.waited = true\n-]",
			killer{inElection, "TestRun_priority", `requireReigns(t, srv, append(tc.before, tc.after...)...)`},
		},
	},
	"election/k8slock/write.go": {
		"k8slock: releases the successor's record": {
			"case release && !l.ours{+ && t == nil+}:",
			killer{inK8slock, "TestLock_releaseLeavesTheSuccessorAlone", `require.Error(t, err)`},
		},
		"k8slock: replaces a record without a comparison": {
			`unchanged := clientv3.Compare(clientv3.ModRevision(l.key), "[-=", l.revision-]{+>", int64(-1)+})`,
			killer{inK8slock, "TestLock_errorsOfTheAPI", `require.True(t, apierrors.IsConflict(`},
		},
		"k8slock: the deadline counts from the answer": {
			"if {+began = clock.System.Now(); +}!t.extend(began) {",
			killer{inK8slock, "TestLock_localDeadline", `require.Equal(t, leaseDuration-margin, time.Since(began)`},
		},
		"k8slock: its own write whose answer was lost counts as another's": {
			"\t\t\t\t[-rev-]{+_+} = kv.ModRevision\n",
			killer{inK8slock, "TestLock_goesThroughLostMessages/answer_swallowed_Txn", `require.NoError(t, err)`},
		},
		"k8slock: any record counts as its own": {
			"if [-bytes.Equal(kv.Value, value)-]{+len(kv.Value) > 0+} {",
			killer{inK8slock, "TestLock_conflictBetweenTwoAttempts/acquisition_request", `require.True(t, apierrors.IsAlreadyExists(`},
		},
		"k8slock: a late write of an earlier call counts as a renewal": {
			"writtenRecord{record, rand.[-Uint64(-]{+Uint64N(1+})}",
			killer{inK8slock, "TestLock_writeOfAnEarlierCallIsNoRenewal", `require.True(t, apierrors.IsConflict(`},
		},
		"k8slock: a second tenure while the elector leads": {
			"if leading {+&& l.present() == nil +}{",
			killer{inK8slock, "TestLock_noSecondTenureWhileTheElectorLeads", `a.leaderRecord()), k8slock.ErrLost)`},
		},
	},
	"lease/candidate.go": {
		"a candidate whose key is deleted as its turn comes leads": {
			"if [-err == nil && !-]state.CompareAndSwap(waits, leads){+; false+} {",
			killer{inElection, "TestCampaign_entersAgain_asItsTurnComes", `require.Len(t, p.srv.Keys(l.Key()), 1)`},
		},
		"a candidate whose key is deleted while it waits reports a loss": {
			"if [-end == queue.Deleted && state.CompareAndSwap(waits, passed)-]{+false+} {",
			killer{inElection, "TestCampaign_entersAgain", `b.requireWaiting(t)`},
		},
	},
	"election/k8slock/tenure.go": {
		"k8slock: a late renewal revives a tenure": {
			"[-if !t.live() {\n\t\treturn false\n\t}\n\t-]t.mu.Lock()\n\tt.from",
			killer{inK8slock, "TestLock_renewalAcrossTheDeadline", `a.leaderRecord()), k8slock.ErrLost)`},
		},
		"k8slock: a host that wakes up leads for another half second": {
			"look := clock.[-System-]{+Clock{Boot: clock.System.Boot}+}.NewTimer(",
			killer{inK8slock, "TestLock_suspendedHost/alarms", `require.LessOrEqual(t, time.Since(began), 5*time.Second+1+late)`},
		},
		"k8slock: a context of a tenure is kept until the tenure ends": {
			"scope.Work(t.ctx, [-ctx-]{+context.WithoutCancel(ctx)+})",
			killer{inK8slock, "TestLock_NewContext_isFreed", `require.Nil(t, held.Value())`},
		},
		"k8slock: a context of a tenure ends after the release is sent": {
			"scope.Work([-t.ctx, -]{+ctx, t.+}ctx)",
			killer{inK8slock, "TestLock_NewContext_endsBeforeARelease", `require.False(t, late)`},
		},
		"k8slock: each renewal opens a stream": {
			"if [-last < 0-]{+true+} {",
			killer{inK8slock, "TestLock_keepsTheStreamsOfItsRenewals", `require.Equal(t, tc.want, a.c.KeepAliveStreams())`},
		},
	},
}
