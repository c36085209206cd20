package mutants_test

const inLease = "lease"

var leaseMutants = table{
	"lease/onlook.go": {
		"Watch: goes on from a revision that was compacted": {
			"[-o.rev = 0 // the changes since then are lost: read the queue anew-]{+_ = o.rev+}",
			killer{inLease, "TestWatch_agreesWithInspect", `require.Equal(t, now, shown)`},
		},
	},
	"lease/release.go": {
		"Release: deletes the key of a later holder": {
			"a.Txn([-[]clientv3.Cmp{c.stands()}-]{+nil+}, []clientv3.Op{clientv3.OpDelete(c.Key)}, nil)",
			killer{inLease, "TestRelease_leavesTheNextHolder/now", `require.Len(t, e.keys("a"), 1)`},
		},
		"Release: revokes the holder's lease": {
			"[-return conn.Do(ctx, inspectAttempt, holder.delete)-]{+_, err = conn.Client.Revoke(ctx, holder.Lease)\n\t\treturn err+}",
			killer{inLease, "TestRelease_now", `requireLive(t, bystander)`},
		},
		"Release: a lease that one member does not know yet counts as gone": {
			"if {+err == nil || +}errors.Is(err, rpctypes.ErrLeaseNotFound) {",
			killer{inLease, "TestRelease_waits_keyWithoutItsLease", `looking.Client, "a", wait), context.DeadlineExceeded)`},
		},
	},
	"internal/queue/key.go": {
		"Release: asks a later holder": {
			`[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "[-=", kv.ModRevision-]{+!=", 0+})}`,
			killer{inLease, "TestRelease_leavesTheNextHolder/asked", `Keys("a/")[0].Version)`},
		},
	},
	"lease/loss.go": {
		"a holder that is asked to release deletes its key at once": {
			"c.end(ErrAskedToRelease){+\n\t\tc.g.reaper.add(c.entry.Entry, false)+}",
			killer{inLease, "TestSession_Do_endsEarly/asked", `require.Equal(t, !tc.lost, len(e.keys("a")) == 1, "not under running work")`},
		},
		"TimeToLive: a remaining TTL of 0 counts as gone": {
			"resp.[-GrantedTTL ==-]{+TTL <=+} 0 {",
			killer{inLease, "TestLock_keyDeletedInTheLastSecondOfTheLease", `requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)`},
		},
		"TimeToLive: a lease that is gone counts as alive": {
			"resp.GrantedTTL [-==-]{+<+} 0 {",
			killer{inLease, "TestLock_noticesWhatOthersDo", `lossOf(t, context.Cause(l.Context()), tc.reason)`},
		},
	},
	"lease/acquire.go": {
		"a waiter that is asked to release hands its key on, and so the request": {
			"case lost != nil, asked{+ && false+}, c.with != nil:",
			killer{inLease, "TestRelease_asked_beforeItKnows/next_in_the_same_session", `"it was not asked")`},
		},
		"the lease's ID is the token": {
			"fence.NewToken(c.g.s.opts.Era, [-c.entry.Rev-]{+int64(c.g.id)&(1<<47-1)+})",
			killer{inLease, "TestSession_Lock_givesAHandle", `require.Equal(t, fence.Token(kv.CreateRevision), l.Token())`},
		},
		"a key that was another's is not cleaned up, though our own late request may still arrive": {
			"if c.[-late-]{+entry.Disowned+} || c.entry.Rev != 0 {",
			killer{inLease, "TestKinds_lateRequestOfAKeyThatWasTaken/permit_a", `require.Empty(t, e.keys(""))`},
		},
		"a key that could not be left is not cleaned up": {
			"c.late || late[- || set[i].Disowned-]",
			killer{inLease, "TestTurns_lateRequestToLeave/a_permit,_and_the_request_to_leave_is_refused", `require.FailNow(t, "nothing has come for a day")`},
		},
		"a set enters in two transactions": {
			"ahead, err = c.g.queue.Enter(a, set[-, c.owner)-]{+[:1], c.owner)\n\t\tif err == nil && len(set) > 1 {\n\t\t\tvar more []queue.Ahead\n\t\t\tmore, err = c.g.queue.Enter(a, set[1:], c.owner)\n\t\t\tahead = append(ahead, more...)\n\t\t}+}",
			killer{inLease, "TestSession_LockAll_entersAtOnce", `require.Len(t, e.writes()[before:], 1)`},
		},
		"a set waits in its first queue only": {
			"part.await(ctx, ahead[i]); [-err != nil-]{+true+} {",
			killer{inLease, "TestKinds_random", `require.Equal(t, waits, m.lock == nil`},
		},
		"Lock does not check the deadline after the wait": {
			"[-c.g.checkDeadline()\n\tswitch {\n\tcase ctx.Err() != nil:\n\t\treturn nil, context.Cause(ctx)\n\tcase c.life.Err() != nil-]{+switch {\n\tcase ctx.Err() != nil:\n\t\treturn nil, context.Cause(ctx)\n\tcase false+}:",
			killer{inLease, "TestSession_Lock_looksAtTheClockAfterTheWait", `requireLost(t, got.err, lease.ReasonDeadlinePassed)`},
		},
		"Lock does not check the caller's context after the wait": {
			"switch {\n\tcase [-ctx.Err() != nil:\n\t\treturn nil, context.Cause(ctx)\n\tcase -]c.life",
			killer{inLease, "TestSession_Lock_contextEnds/Lock_after_the_answer", `require.ErrorIs(t, err, errMine)`},
		},
		"an acquisition whose answer was lost is not cleaned up": {
			"c.entry.Entry, c.late = set[i], c.late || late{+ && false+}",
			killer{inLease, "TestSession_Lock_contextEnds/Lock_while_the_server_answers", `require.Empty(t, e.keys(""))`},
		},
		"TryLock: reads the holder without the session's prefix": {
			`c.[-g.s.opts.Prefix+c.-]name+"/"`,
			killer{inLease, "TestTurns_tryLock", `e.requireLocked(t, "the holder", l.Key(), l.Token())`},
		},
	},
	"lease/turn.go": {
		"a TryLock that fails hands its key on, though a late request may still delete it": {
			"c.entry.Rev != 0 [-&& !c.try -]{",
			killer{inLease, "TestTurns_lateRequestToLeave/the_next_caller_does_not_get_the_place", `require.FailNow(t, "too early"`},
		},
	},
	"internal/etcd/keepalive.go": {
		"the deadline counts from the answer to a renewal": {
			"a.{+Sent = clk.Now()\n\t\ta.+}Rev = resp.",
			killer{inLease, "TestLock_endsAtTheDeadline/renewal_answered_after_1s", `require.Equal(t, e.began.Add(tc.want), e.s.Status().Deadline)`},
		},
		"a renewal after Close opens a connection that stays open": {
			"if err := s.ctx.Err(); [-err != nil-]{+false+} { // after Close",
			killer{inEtcd, "TestKeepAlive_lateRenewalMakesNoConnection", `require.False(t, k.Dialed())`},
		},
		"a TTL of 0 in the answer to a renewal is ignored": {
			"if resp.TTL [-<=-]{+<+} 0 {",
			killer{inLease, "TestSession_leaseNotFoundIsFinal", `require.Equal(t, third, receive(t, end))`},
		},
	},
	"lease/session.go": {
		"the deadline counts from the answer to the grant": {
			"[-g = s.newGrant(resp.ID, time.Duration(resp.TTL)*time.Second, sent-]{+_ = sent\n\t\tg = s.newGrant(resp.ID, time.Duration(resp.TTL)*time.Second, s.clock.Now()+}, false)",
			killer{inLease, "TestLock_endsAtTheDeadline/grant_answered_after_4s", `require.Equal(t, e.began.Add(tc.want), e.s.Status().Deadline)`},
		},
		"the deadline of an adopted lease counts from the answer": {
			"etcd.RenewOnce(a.Context(), client, id)\n{+\t\tsent = s.clock.Now()\n+}",
			killer{inLease, "TestAdopt_countsFromItsOwnRenewal", `Deadline: e.began.Add(usable)}, e.s.Status())`},
		},
		"the deadline uses the requested TTL, not the granted one": {
			"g = s.newGrant(resp.ID, [-time.Duration(resp.TTL)*time.Second-]{+s.opts.TTL+}, sent, false)",
			killer{inLease, "TestLock_endsAtTheDeadline/TTL_raised_from_1s_to_2s", `require.Equal(t, e.began.Add(tc.want), e.s.Status().Deadline)`},
		},
		"a retried grant fails because the first attempt has granted the lease": {
			"[-!errors.Is(err, rpctypes.ErrLeaseExist)-]{+err != nil+} {",
			killer{"integration/scenario/network", "TestNewSession_lostGrant", `require.NoError(t, err)`},
		},
		"the server chooses a lease's ID": {
			"&pb.LeaseGrantRequest{TTL: ttl, ID: id{+ & 0+}}",
			killer{"integration/scenario/security", "TestSession_idleLeaseIsAttacked", `require.False(t, seen[int64(id)>>16], "IDs are near each other")`},
		},
	},
	"lease/kinds.go": {
		"a tree lock holds the nodes above exclusively": {
			"mode{kind: [-KindTreeLock-]{+KindLockSet+},",
			killer{inLease, "TestKinds_random", `require.`},
		},
		"a tree lock holds its own node only, none above": {
			"s.obtainAll(ctx, names{+[:1]+}, mode{kind: KindTreeLock",
			killer{inLease, "TestKinds_random", `require.`},
		},
		"a set does not notice that its second key is gone": {
			"other.entry.Ended = [-other.keyEnded-]{+func(queue.End) {}+}",
			killer{inLease, "TestKinds_loseAKey/lock_set_b,a_noticed_true", `require.Equal(t, keys[i], lossOf(t, context.Cause(l.Context()), lease.ReasonKeyDeleted).Key)`},
		},
	},
	"internal/queue/slots.go": {
		"a permit has the turnstile's token": {
			"\tif resp.Succeeded {\n\t\te.Rev = resp.Revision\n{+\t\tif turnstile.Rev != 0 {\n\t\t\te.Rev = turnstile.Rev\n\t\t}\n+}",
			killer{inLease, "TestKinds_random", `require.`},
		},
		"a permit is taken before waiters that are at the turnstile": {
			"[]clientv3.Cmp{[-turnstile.empty(), -]e.empty()}",
			killer{inLease, "TestKinds_random", `require.`},
		},
		"a permit takes a slot that is in use": {
			"[]clientv3.Cmp{turnstile.empty()[-, e.empty()-]}",
			killer{inLease, "TestSession_Permit_slotOutOfService", `lease.ErrLocked, "there is no other slot")`},
		},
		"Permit does not compare the limits": {
			"case [-limit == of-]{+true+}:",
			killer{inLease, "TestSession_Permit_anotherLimit", `require.ErrorAs(t, err, &limit)`},
		},
		"a permit with another limit that is given up makes permits with the right limit fail": {
			"s.Any, s.Passing = s.Other, own < [-s.Other.CreateRevision-]{+0+}",
			killer{inLease, "TestSession_Permit_wrongLimitGivesUp", `require.ErrorIs(t, second(right.s.TryPermit(`},
		},
	},
	"lease/keys.go": {
		"a key's number is reused though a late request may still write it": {
			"if [-burn-]{+false+} {",
			killer{inLease, "TestKeys_random", `require.`},
		},
	},
	"lease/lock.go": {
		"Unlock of a set takes a key that others deleted for deleted by itself": {
			"(late || p.late)[- && len(missing) == len(set)-]",
			killer{inLease, "TestLockSet_Unlock_aKeyIsMissing/request_repeated", `require.Equal(t, key, lossOf(t, err, lease.ReasonKeyDeleted).Key)`},
		},
		"a lost set leaves its other keys": {
			"l.each((*contender).[-clear-]{+gone+})\n\t\tl.pass()",
			killer{inLease, "TestKinds_loseAKey/lock_set_b,a_noticed_true", `require.Empty(t, e.keys(""))`},
		},
		"hooks: a lost hold is reported as released": {
			"\tif lost := l.lost(); lost != nil {\n{+\t\tl.hooked.released(then, lost)\n+}",
			killer{inLease, "TestHooks_Lost", `require.Empty(t, h.take())`},
		},
		"a key is reused while an earlier request may still write it": {
			"[-if c.late {\n\t\tc.g.reaper.add(c.entry.Entry, true)\n\t\treturn\n\t}\n-]",
			killer{inLease, "TestSession_Lock_doesNotUseALateKeyAgain", `require.NotEqual(t, late.Key(), l.Key())`},
		},
		"Unlock: deletes the key before the context ends": {
			"\t{+defer +}l.end(ErrUnlocked)\n",
			killer{inLease, "TestLock_Unlock_endsTheContextFirst", `require.Zero(t, receive(t, end))`},
		},
		"Err does not check the clock": {
			"[-l.g.checkDeadline()\n\t-]return context.Cause(l.life)",
			killer{inLease, "TestLock_Err_looksAtTheClock", `requireLost(t, l.Err(), lease.ReasonDeadlinePassed)`},
		},
		"Do releases before the function has returned": {
			"{+defer context.AfterFunc(work, func() { _ = l.finish(ctx) })()\n\t+}return fn(work, l.Token())",
			killer{inLease, "TestSession_Do_endsEarly/cancelled_by_the_caller", `require.Equal(t, !tc.lost, len(e.keys("a")) == 1, "not under running work")`},
		},
		"Do's release ends with the caller's context": {
			"context.WithTimeout([-context.WithoutCancel(ctx)-]{+ctx+}, releaseBound",
			killer{inLease, "TestSession_Do_endsEarly/cancelled_by_the_caller", `require.EqualError(t, err, errMine.Error()+tc.want)`},
		},
	},
	"lease/hooks.go": {
		"hooks: a renewal waits for its hook": {
			"[-g.s.events.Add(func() { h.Renewed(Renewal{g.id, roundTrip, attempts, left}) -]{+h.Renewed(Renewal{g.id, roundTrip, attempts, left+}})",
			killer{inLease, "TestHooks_thatBlock", `require.NoError(t, l.Err(), "it is renewed")`},
		},
		"hooks: a loss after the longest hold is not reported": {
			"case <-l.{+life.Done():\n\t\t\t\t\treturn\n\t\t\t\tcase <-l.+}g.handles.Done():",
			killer{inLease, "TestHooks_afterTheLongestHold", `require.ElementsMatch(t, []string{`},
		},
		"JoinHooks: the second does not get the context of the first": {
			"g.AcquireStart([-first-]{+ctx+}, a)",
			killer{inLease, "TestJoinHooks", `require.Equal(t, want, h.take())`},
		},
		"JoinHooks: the second is not called": {
			"[-\t\t\t\tdefer g.AcquireEnd(ctx, a, r)\n-]",
			killer{inLease, "TestJoinHooks", `require.Equal(t, want, h.take())`},
		},
	},
	"lease/grant.go": {
		"the deadline is checked once a second": {
			"return [-left-]{+time.Second+}\n",
			killer{inLease, "TestLock_endsAtTheDeadline/TTL_5s", `require.Equal(t, tc.want, receive(t, end))`},
		},
		"a handle is live at the deadline itself": {
			"if !lost && left [-<=-]{+<+} 0 {",
			killer{inLease, "TestLock_endsAtTheDeadline/never_renewed", `require.Equal(t, tc.want, receive(t, end))`},
		},
		"the deadline has no margin": {
			"return g.ttl - g.[-margin - g.-]s.clock.Since(g.sent)",
			killer{inLease, "TestLock_endsAtTheDeadline/never_renewed", `require.Equal(t, tc.want, receive(t, end))`},
		},
		"a late renewal revives a handle": {
			"[-if !g.checkDeadline() {\n\t\treturn\n\t}\n\t-]g.mu.Lock()\n\tif sent.Later",
			killer{inLease, "TestLock_endsSoonAfterASuspension/an_answer_comes", `require.Equal(t, tc.want, receive(t, end))`},
		},
	},
	"lease/heal.go": {
		"a lease past its deadline is used for the next acquisition": {
			"alive := g.[-checkDeadline()-]{+handles.Err() == nil+}",
			killer{inLease, "TestSession_suspensionCounts", `e.lock(t, "b")`},
		},
		"a caller that gives up while a new lease is granted keeps its place in line": {
			"case served[-: // whatever else has ended meanwhile-]{+ && err == nil:+}",
			killer{inLease, "TestHeal_callerGivesUpAsTheLeaseComes", `require.NoError(t, err, "nobody stands ahead")`},
		},
	},
	"lease/reaper.go": {
		"reaper: does nothing": {
			"r.running = r.g.s.spawn([-r.run-]{+func(context.Context) {}+})",
			killer{inLease, "TestSession_Lock_contextEnds/TryLock_after_the_answer", `require.Empty(t, e.keys(""))`},
		},
		"reaper: looks only once for a key that may still arrive": {
			"case o.late && now.[-Before-]{+After+}(end):",
			killer{inLease, "TestReaper_deletesALateDuplicateAfterUnlock", `require.Empty(t, e.keys("a"))`},
		},
		"reaper: deletes without a comparison": {
			"OpTxn([]clientv3.Cmp{ours}{+[:0]+}, []",
			killer{inLease, "TestReaper_deletesNobodyElsesKey", `require.Equal(t, []string{key}, e.keys("a"))`},
		},
	},
	"internal/etcd/attempt.go": {
		"an attempt stays registered with the lease": {
			"\t\t[-a.stop()-]{+_ = a.stop+}\n",
			killer{inLease, "TestSession_callsLeaveNothingRegistered/Lock_that_waits", `require.Equal(t, before, registered())`},
		},
	},
	"internal/scope/scope.go": {
		"Do stays registered with the caller": {
			"\t\t[-stop()-]{+_ = stop+}\n\t\tcancel(nil)",
			killer{inLease, "TestSession_callsLeaveNothingRegistered/Do", `require.Equal(t, before, registered())`},
		},
	},
	"lease/close.go": {
		"Close: etcd deletes all keys in one step": {
			"len(keys) >= fewKeys {+&& false +}{",
			killer{inLease, "TestSession_Close_withVeryManyLocks/many", `require.Equal(t, row.left, left)`},
		},
		"Close: the deletions leave no time for the revocation": {
			"time.Until(end)[-/2-]{+*3/4+}",
			killer{inLease, "TestSession_Close_withVeryManyLocks/no_answers", `require.Equal(t, row.took,`},
		},
		"Close: deletes a key that is another's by then": {
			"OpTxn([]clientv3.Cmp{g.attached(key)}{+[:0]+},",
			killer{inLease, "TestSession_Close_deletesOnlyItsOwn", `require.Equal(t, []string{taken}, e.keys(""))`},
		},
	},
	"internal/queue/enter.go": {
		"Unlock: deletes without a comparison": {
			"[-If: []clientv3.Cmp{e.Held()}, -]Then: []*pb.RequestOp{e.delete()}",
			killer{inLease, "TestLock_Unlock_deletesNobodyElsesKey", `requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)`},
		},
	},
	"lease/renew.go": {
		"no second renewal while one hangs": {
			"\tl := r.[-next(ctx)-]{+own\n\tif l.busy {\n\t\tl = nil\n\t}+}\n",
			killer{inLease, "TestSession_oneDeadEndpointOfThree", `requireLive(t, l)`},
		},
		"any number of renewals in a third of the TTL": {
			"\tif r.tries [-== 1-]{+> 0+} {\n\t\tr.failed = true",
			killer{inLease, "TestSession_boundsItsRenewals", `sent[i+4]-sent[i], third-1)`},
		},
		"a single connection beside the client's own to a single endpoint": {
			"return slices.Repeat(all, 1[-+2/len(all)-])",
			killer{inLease, "TestSession_outlivesSlowAnswers", `requireLive(t, l)`},
		},
		"renewals without jitter": {
			"return g.untilRenewal()[- - random(g.third()/5)-]",
			killer{inLease, "TestSession_renewsWithJitter", `require.Greater(t, len(at), 4*30, "hardly two at once")`},
		},
		"each renewal opens a stream, and authenticates": {
			"\tg.extend(a.Sent)\n{+\ta.line.Reset()\n+}",
			killer{inLease, "TestSession_renewsAThirdOfTheTTLAfterTheLastSend", `"one stream, and one authentication, for all")`},
		},
		"keys are not read after a stream has broken": {
			"if r.broken [-|| a.Reopened -]{",
			killer{inLease, "TestSession_reclaimsKeysThatComeBack", `require.ElementsMatch(t, []string{others, held.Key()}, e.keys(""))`},
		},
		"silent watch streams are not probed": {
			"[-\tg.probe()\n-]",
			killer{inLease, "TestLock_watchFallsSilent", `require.LessOrEqual(t, at, third+ttl/2`},
		},
	},
	"internal/clock/clock.go": {
		"the deadline does not count time in suspension": {
			"elapsed = max(elapsed, [-c.Boot()-i.boot-]{+0+})",
			killer{"internal/clock", "TestClock_theLongerElapsedTimeCounts", `require.Equal(t, 62*time.Second, c.Since(i))`},
		},
	},
}
