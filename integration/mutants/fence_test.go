package mutants_test

const (
	inFence     = "fence"
	inEtcdfence = "fence/etcdfence"
	inGrpcfence = "fence/grpcfence"
	inHttpfence = "fence/httpfence"
	inS3fence   = "fence/s3fence"
	inWire      = "fence/internal/wire"
	inRedis     = "fence/redisfence"
	inSqlfence  = "fence/sqlfence"
	onSQLite    = "integration/sqlfence"
)

var fenceMutants = table{
	"fence/mark.go": {
		"Guard: no fence": {
			"case b.Token < [-m.write-]{+0+}:",
			killer{inFence, "TestGuard_rules", `rules.Decide(t)`},
		},
		"Guard: strict instead of non-strict": {
			"case b.Token [-<-]{+<=+} m.write:",
			killer{inFence, "FuzzGuard/seed#0", `fencetest.RequireRefusal(t, want, err, resource, fmt`},
		},
		"Guard: the last stale token is accepted": {
			"case b.Token < m.write{+-1+}:",
			killer{inFence, "TestGuard_rules", `rules.Decide(t)`},
		},
		"Guard: a token is not compared again after a wait": {
			"if [-err := m.raise(resource, b); err != nil || fn == nil-]{+fn != nil {\n\t\tm.marks.Store(&marks{write: b.Token})\n\t} else if err := m.raise(resource, b); err != nil || true+} {",
			killer{inFence, "TestGuard_Do_newerTokenWaits", `"an older token was accepted after a newer one")`},
		},
		"Guard: Do lets newer tokens in before its function has returned": {
			"[-defer m.give()\n\tif err := m.raise(resource, b);-]{+err = m.raise(resource, b)\n\tm.give()\n\tif+} err != nil || fn == nil {",
			killer{inFence, "TestGuard_Do_newerTokenWaits", `54 was accepted while 41 was still writing`},
		},
		"Guard: Load lowers a mark": {
			"[-if m.marks.Load().has(b) {\n\t\treturn\n\t}\n\tm.turn <- struct{}{}\n\tm.lift(b)-]{+m.turn <- struct{}{}\n\t*m.marks.Load() = m.marks.Load().lifted(b)\n\tm.marks.Load().write = b.Token+}",
			killer{inFence, "FuzzGuard/seed#4", `require.Equal(t, model[resource], marksOf(g, resource).Normal())`},
		},
		"Guard: a reader does not fence the writer before it": {
			"[-!b.read && b.Token < m.read-]{+false+}",
			killer{inFence, "TestGuard_ClaimRead_waitsForTheOlderWriter", `ByReader: true}, g.Check("orders", 41))`},
		},
		"Guard: a reader fences the readers before it": {
			"[-!b.read && -]b.Token < m.read",
			killer{inFence, "TestGuard_ClaimRead_waitsForTheOlderWriter", `require.NoError(t, g.CheckRead("orders", 53), "an older reader`},
		},
		"Guard: a reader raises the write mark": {
			"if [-b.read-]{+false+} {\n\t\tnext.read",
			killer{inFence, "TestGuard_ClaimRead_waitsForTheOlderWriter", `g.Check("orders", 41))`},
		},
		"Guard: a token of another lock is accepted": {
			`[-m.lock != "" && b.lock != m.lock && !b.moving-]{+false+}`,
			killer{inFence, "TestGuard_rules", `rules.Decide(t)`},
		},
		"Guard: every token moves the resource to its lock": {
			`if [-next.lock == "" || b.moving-]{+true+} {`,
			killer{inFence, "TestGuard_rules", `rules.Decide(t)`},
		},
		"a token without a lock's name is accepted by a mark that follows a lock": {
			`case !other || [-!b.strict-]{+b.lock == ""+}:`,
			killer{inFence, "TestGuard_rules", `rules.Decide(t)`},
		},
	},
	"fence/guard.go": {
		"Guard: Claim installs nothing": {
			"Claim(resource string, t Token) error {\n\treturn g.[-admit(resource, bare(writer(t)), nil-]{+validate(resource, bare(writer(t))+})",
			killer{inFence, "FuzzGuard/seed#0", `require.Equal(t, model[resource], marksOf(g, resource).Normal())`},
		},
		"Guard: a reader does not wait for the older writer's function": {
			"ClaimRead(resource string, t ReadToken) error {\n\treturn g.[-admit(resource, bare(reader(t)), nil-]{+find(resource).raise(resource, bare(reader(t))+})",
			killer{inFence, "TestGuard_ClaimRead_waitsForTheOlderWriter", `require.Empty(t, g.ReadMarks(), "the reader waits")`},
		},
		"Guard: a refusal that the function returns is reported as the resource's": {
			"\tif ran {+&& err == nil +}{\n\t\tg.Hooks",
			killer{inFence, "TestGuard_hooks", `require.NoError(t, failure)`},
		},
		"Guard: a path's claim does not reach the nodes above": {
			"{+\t\t\tif b.read {\n\t\t\t\treturn nil\n\t\t\t}\n+}\t\t\t_, err := m.accept(resource, b, nil)\n",
			killer{inLease, "TestSession_DoTree_carriesTheToken", `require.ErrorIs(t, g.CheckPath("a/b", above), fence.ErrStale)`},
		},
		"Guard: a path's check does not look at the nodes above": {
			"i == len(path)[- || path[i] == '/'-]",
			killer{inLease, "TestSession_DoTree_carriesTheToken", `require.ErrorIs(t, g.CheckPath("a/b/c", below), fence.ErrStale)`},
		},
		"Guard: a path's claim waits for one node while it holds another": {
			"\t\t\t[-_, err := m.accept(resource, b, nil)\n\t\t\treturn err\n\t\t})\n-]{+m.turn <- struct{}{}\n\t\t\treturn m.raise(resource, b)\n\t\t})\n\t\t_ = each(func(m *mark, _ string, _ bid) error {\n\t\t\tselect {\n\t\t\tcase <-m.turn:\n\t\t\tdefault:\n\t\t\t}\n\t\t\treturn nil\n\t\t})\n+}",
			killer{inFence, "TestGuard_ClaimPath_waitsWithoutATurn", `"the claim holds %s", used)`},
		},
		"Guard: a path's claim without the last look": {
			"return [-each((*mark).refuse)-]{+nil+} //",
			killer{inFence, "TestGuard_ClaimPath_waitsWithoutATurn", `"it has waited at %s", busy)`},
		},
	},
	"fence/context.go": {
		"a reader's context carries a writer's token": {
			"t != nil [-&& !t.token.read -]{",
			killer{inFence, "TestContext_carriesOneTenure", `requireCarries(t, fence.NewReadContext(writer, 41), tenure{read: 41})`},
		},
		"an inner lock's token is sent for the lock that is named": {
			"{+len(t.locks) > 0 || +}slices.Contains(t.locks, string(key))",
			killer{inFence, "TestForLock", `requireCarries(t, fence.ForLock(nested, "report"), tenure{write: 41, lock: "report"})`},
		},
		"a request gets the locks of the service that handles it": {
			"case [-t.alone-]{+false+}:",
			killer{inFence, "TestForLock_findsNothingBehindATokenOfAnother", `requireCarries(t, fence.ForLock(request, "stock"), tenure{})`},
		},
	},
	"fence/token.go": {
		"Token: without the era": {
			"return Token([-int64(era)<<revisionBits | -]revision), nil",
			killer{inFence, "TestNewToken_packsEraAndRevision", `require.Equal(t, tt.want, got)`},
		},
	},
	"fence/grpcfence/server.go": {
		"grpcfence: a reader's token is accepted for a write": {
			"err == nil && c.writes && t.Write == 0 {+&& t.Read == 0 +}{",
			killer{inGrpcfence, "TestStream_eachMessage/reads_false,_moved_false", `"a reader does not write")`},
		},
		"grpcfence: a reader is not checked": {
			"if !c.writes [-&& (t.Read == 0 || s.opts.CheckRead == nil) -]{",
			killer{inGrpcfence, "TestStream_eachMessage/reads_true,_moved_false", `require.ErrorIs(t, g.Claim("orders", 41), fence.ErrStale)`},
		},
	},
	"fence/httpfence/transport.go": {
		"httpfence: a redirect takes a reader's header to another host": {
			"case !listed && r.Response != nil{+ && header != ReadHeader+}:",
			killer{inHttpfence, "TestTransport_redirectToAnotherHost/reader's_header", `[][]string{nil}, *gotOther)`},
		},
		"httpfence: a redirect takes a lock's name to another host": {
			"case !listed && r.Response != nil{+ && header != LockHeader+}:",
			killer{inHttpfence, "TestTransport_redirectToAnotherHost/lock's_header", `[][]string{nil}, *gotOther)`},
		},
	},
	"fence/httpfence/middleware.go": {
		"httpfence: a cache may answer with another lock's answer": {
			"for _, header := range headers{+[:2]+} {",
			killer{inHttpfence, "TestMiddleware_methods", `"whether it has a token or not")`},
		},
	},
	"fence/grpcfence/client.go": {
		"grpcfence: the name of the lock is not sent": {
			`if add[i] != ""{+ && key != LockMetadataKey+} {`,
			killer{inGrpcfence, "TestStream_eachMessage/reads_false,_moved_false", `require.Equal(t, map[string]string{"orders": "ärger"}, g.Locks())`},
		},
	},
	"fence/internal/wire/wire.go": {
		"wire: a name has several spellings": {
			"err != nil [-|| EncodeLock(lock) != text -]{",
			killer{inWire, "FuzzDecodeLock/seed#16", `"a name has one spelling")`},
		},
	},
	"fence/redisfence/call.go": {
		"redisfence: a token of another lock is accepted": {
			`by.Moves || by.Lock [-== "" &&-]{+!= "" ||+} m.opts.AllowUnnamed`,
			killer{inRedis, "TestMarks_rules", `rules.Decide(t)`},
		},
	},
	"fence/redisfence/script.go": {
		"redisfence: a write that raises the mark forgets its lock": {
			`luaAdmit + {+"local function form(write, read) return write .. ' ' .. read end" + +}luaGuard)`,
			killer{inRedis, "TestMarks_rules", `rules.Decide(t)`},
		},
	},
	"fence/etcdfence/kv.go": {
		"etcdfence: no fence while a lock is held": {
			"etcd.Commit(ctx, h.kv, [-h.cmps-]{+nil+},",
			killer{inEtcdfence, "TestNewKV_model", `require.Equal(t, want, kv.Check(ctx))`},
		},
		"etcdfence: a lock whose key was taken off its lease counts as held": {
			"[]clientv3.Cmp{cmp.Clone()[-, onLease(key)-]}",
			killer{inEtcdfence, "TestNewKV_model", `require.Equal(t, want, kv.Check(ctx))`},
		},
	},
	"fence/internal/admission/admission.go": {
		"etcdfence: no fence by the mark": {
			"case b.{+Read && b.+}Token < m.Write:",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: strict instead of non-strict": {
			"case b.Token [-<-]{+<=+} m.Write:",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: a newer writer does not refuse a reader": {
			"case {+!b.Read && +}b.Token < m.Write:",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: the mark is the last reader's, not the highest": {
			"m.Read = [-max(m.Read, b.Token)-]{+b.Token+}",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: a token of another lock is accepted": {
			`b.Lock [-!= m.Lock-]{+== ""+} && !b.Moves`,
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: a token without a name is accepted by a mark that follows a lock": {
			"case [-!other || b.Lax-]{+true+}:",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: the name is forgotten when the mark is raised": {
			"m.Write, m.Read[- = b.Token, 0-]{+, m.Lock = b.Token, 0, b.Lock+}",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"sqlfence: no fence": {
			"case b.Token < [-m.Write-]{+0+}:",
			killer{onSQLite, "TestMarks_overlap/SQLite,_journal_wal", `fencetest.RequireRefusal(t, want, err, node`},
		},
		"sqlfence: a reader does not fence the writer before it": {
			"!b.Read && b.Token < [-m.Read-]{+0+}",
			killer{onSQLite, "TestMarks_overlap/SQLite,_journal_wal", `fencetest.RequireRefusal(t, want, err, node`},
		},
		"sqlfence: a reader fences the readers before it": {
			"[-!b.Read && -]b.Token < m.Read",
			killer{onSQLite, "TestMarks_sideBySide/SQLite,_journal_wal", `require.NoError(t, claim(tenure(t, tokens[i]), node))`},
		},
		"sqlfence: a token of another lock is accepted": {
			`other := [-m.Lock != ""-]{+false+} &&`,
			killer{onSQLite, "TestMarks_rules/SQLite,_journal_wal", `rules.Decide(t)`},
		},
	},
	"fence/etcdfence/marks.go": {
		"etcdfence: Claim raises no mark before the read": {
			"error {\n\treturn m.[-raise(ctx, resource, admission.Bid{}-]{+Check(ctx, resource+})",
			killer{inEtcdfence, "TestMarks_rules", `rules.Decide(t)`},
		},
		"etcdfence: raises a mark without a comparison": {
			`cond = clientv3.Compare(clientv3.ModRevision(key), "[-=", rev-]{+>", min(rev, -1)+})`,
			killer{inEtcdfence, "TestMarks_overlap", `rules.Overlap(t, verbs(newMarks(`},
		},
		"etcdfence: a reader raises the marks without a comparison": {
			`[-cond = clientv3.Compare(clientv3.ModRevision(key), "=", rev)-]{+if cond = clientv3.Compare(clientv3.ModRevision(key), "=", rev); by.Read { cond = clientv3.Compare(clientv3.ModRevision(key), ">", int64(-1)) }+}`,
			killer{inEtcdfence, "TestMarks_overlap", `rules.Overlap(t, verbs(newMarks(`},
		},
	},
	"fence/internal/sqlmark/do.go": {
		"sqlfence: non-strict instead of strict": {
			"if [-!seen.has(c)-]{+seen.Write <= c.Token+} {",
			killer{inSqlfence, "TestDo_errorOfFn", `require.Equal(t, c.runs, runs`},
		},
		"sqlfence: no Claim before the read": {
			"[-if !seen.has(c) {\n\t\treturn errBehind\n\t}\n-]",
			killer{onSQLite, "TestMarks_overlap/SQLite,_journal_wal", `fencetest.RequireRefusal(t, wantArrived, arrived`},
		},
		"sqlfence: Do reports its own claim to the hooks too": {
			"if err := e.[-claimOnce(ctx, db, resource, c-]{+Claim(ctx, db, resource, Writer+}); err != nil {",
			killer{onSQLite, "TestMarks_hooks/SQLite,_journal_wal", `require.NoError(t, failure, step.name)`},
		},
		"sqlfence: a refusal that the function returns is reported as the resource's": {
			"\tif ran {+&& err == nil +}{\n",
			killer{onSQLite, "TestMarks_hooks/SQLite,_journal_wal", `require.NoError(t, failure, step.name)`},
		},
		"sqlfence: a COMMIT whose answer was lost is retried blindly": {
			"return [-!errors.Is(err, ErrUnknown) &&-]{+errors.Is(err, ErrUnknown) ||+} (",
			killer{inSqlfence, "TestDo_answerToCommit", `require.Equal(t, c.runs, runs)`},
		},
	},
	"fence/internal/sqlmark/verbs.go": {
		"sqlfence: a check is not refused by a newer claim that comes between its statements": {
			"e.raise(ctx, tx, n.resource, n.Claimant, seen); [-refused != nil-]{+false+} {",
			killer{
				onSQLite, "TestMarks_overlap/PostgreSQL,_Read_Committed",
				`fencetest.RequireRefusal(t, want, err, node`,
			},
		},
		"sqlfence: a reader's claim raises no mark": {
			"err == nil && refused == nil && !seen.has(c) {+&& !c.Read +}{",
			killer{onSQLite, "TestMarks_rules/SQLite,_journal_wal", `rules.Decide(t)`},
		},
		"sqlfence: a path's claim does not reach the nodes above": {
			"for _, n := range [-lacking-]{+nodes[:1]+} {",
			killer{
				onSQLite, "TestMarks_pathsFollowLocks/SQLite,_journal_wal",
				`require.NoError(t, err, "what was claimed")`,
			},
		},
		"sqlfence: a path's check does not look at the nodes above": {
			"for _, n := range nodes{+[:1]+} {",
			killer{
				onSQLite, "TestMarks_overlapOfPaths/SQLite,_journal_wal",
				`fencetest.RequireRefusal(t, want, err, node`,
			},
		},
	},
	"fence/internal/sqlmark/postgresql.go": {
		"sqlfence: a reader trusts the snapshot of the marks that its lock returned": {
			"case kept[- && s.snapshot-]:",
			killer{onSQLite, "TestMarks_CheckRead_locksAnOldVersion/Read_Committed,_Check", `require.Zero(t, n, "what a newer writer has written")`},
		},
		"sqlfence: a reader's guard has no lock if its mark is raised between two statements": {
			"if [-err == nil && !kept && s.has(c)-]{+false+} {",
			killer{onSQLite, "TestMarks_markRaisedBetweenAReadersStatements/CheckRead", `require.True(t, waits, "the guard has no lock")`},
		},
		"sqlfence: a path's check locks an old version of the marks above": {
			"case [-kept && s.snapshot && c.Above-]{+false+}:",
			killer{
				onSQLite, "TestMarks_CheckPath_locksAnOldVersion/Repeatable_Read",
				`require.Error(t, err, "a stale write")`,
			},
		},
	},
	"fence/internal/sqlmark/store.go": {
		"sqlfence: a claim on SQLite reads before it writes": {
			"if known == (marks{}) [-|| s.writesFirst -]{",
			killer{onSQLite, "TestMarks_overlapOfClaims/SQLite,_journal_wal", `fencetest.RequireRefusal(t, want, err, node`},
		},
		"sqlfence: a token of another lock is accepted if it comes between a claim's two steps": {
			`if {+c.Lock == "" && +}m.Refuse(resource, c) != nil {`,
			killer{
				onSQLite, "TestMarks_overlapOfClaims/SQLite,_journal_wal",
				`require.Equal(t, end.marks, o.r.marks(t, resource).Normal())`,
			},
		},
		"sqlfence: the lock's name is forgotten when the mark is raised without one": {
			`if [-m.Lock == "" || c.Moves-]{+true+} {`,
			killer{onSQLite, "TestMarks_rules/SQLite,_journal_wal", `rules.Decide(t)`},
		},
		"sqlfence: an announced claim of another lock refuses the rightful holder": {
			`follows == [-"" || follows == s.announced.Lock-]{+follows+} {`,
			killer{
				onSQLite, "TestMarks_overlapOfClaims/PostgreSQL,_Read_Committed",
				`"a claim that was refused is announced")`,
			},
		},
	},
	"fence/internal/sqlmark/row.go": {
		"sqlfence: a row refuses its own holder's second write": {
			"AND %s [-<=-]{+<+} %s",
			killer{onSQLite, "TestUpdateRow/SQLite,_journal_wal", `require.NoError(t, r.updateRow(as(t, newer), r.conn, account, set, 5), "MySQL`},
		},
		"sqlfence: a row is written without a comparison": {
			"AND %s [-<= -]{+<> -+}%s",
			killer{onSQLite, "TestUpdateRow/SQLite,_journal_wal", `require.True(t, ok`},
		},
	},
	"fence/s3fence/write.go": {
		"s3fence: a token of another lock is accepted": {
			"{+c.by.Moves = true\n\t\t+}if err := base.Refuse(b.resource(c.key), c.by); err != nil {",
			killer{inS3fence, "TestBucket_rules", `rules.Decide(t)`},
		},
		"s3fence: a conflict counts as not written though the object could not be read": {
			"[-unknown = unknown || outcome == conflict\n-]",
			killer{
				inS3fence, "TestBucket_Put_answers/412_to_a_copy,_and_then_forbidden",
				`require.Equal(t, errors.Is(tt.want, other), errors.Is(err, other))`,
			},
		},
		"s3fence: the lock is forgotten when a mark is raised": {
			"prev: base.id, state: st}\n{+\t\th.Lock = c.by.Lock\n+}",
			killer{inS3fence, "TestBucket_rules", `rules.Decide(t)`},
		},
	},
	"examples/quickstart/demo/worker.go": {
		"quickstart: no Claim before the read": {
			"[-if err := book.Claim(ctx); err != nil {\n\t\treturn err\n\t}\n-]",
			killer{"examples/quickstart/demo", "TestQuickstart_refusesTheStaleWrite", `exampletest.RequireInOrder(t, text,`},
		},
	},
}
