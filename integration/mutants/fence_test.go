package mutants_test

const (
	inFence     = "fence"
	inEtcdfence = "fence/etcdfence"
	inSqlfence  = "fence/sqlfence"
	onSQLite    = "integration/sqlfence"
)

var fenceMutants = []mutant{
	{
		name: "Guard: no fence",
		file: "fence/guard.go",
		old:  "m.load(); t < highest {",
		new:  "m.load(); t < 0 {",
		by:   killer{inFence, "TestGuard_refusesBelowTheMark", `require.ErrorIs(t, err, fence.ErrStale)`},
	},
	{
		name: "Guard: strict instead of non-strict",
		file: "fence/guard.go",
		old:  "m.load(); t < highest {",
		new:  "m.load(); t <= highest {",
		by:   killer{inFence, "FuzzGuard/seed#0", `require.NoError(t, err)`},
	},
	{
		name: "Guard: the last stale token is accepted",
		file: "fence/guard.go",
		old:  "m.load(); t < highest {",
		new:  "m.load(); t < highest-1 {",
		by:   killer{inFence, "TestGuard_refusesBelowTheMark", `require.ErrorIs(t, err, fence.ErrStale)`},
	},
	{
		name: "Guard: Claim installs nothing",
		file: "fence/guard.go",
		old:  "Claim(resource string, t Token) error {\n\treturn g.admit(resource, t, (*mark).await)",
		new:  "Claim(resource string, t Token) error {\n\treturn g.validate(resource, t)",
		by:   killer{inFence, "FuzzGuard/seed#0", `require.Equal(t, model, marks)`},
	},
	{
		name: "Guard: whoever has waited is not compared again",
		file: "fence/guard.go",
		old:  "if err := m.raise(resource, t); err != nil {\n\t\treturn err\n\t}\n\treturn fn()",
		new:  "m.highest.Store(int64(t))\n\treturn fn()",
		by:   killer{inFence, "TestGuard_waitersAreComparedAgain", `require.Equal(t, map[string]fence.Token{"orders": newest}, g.Marks())`},
	},
	{
		name: "Guard: Do lets newer tokens in before its function has returned",
		file: "fence/guard.go",
		old:  "defer m.give()\n\tif err := m.raise(resource, t); err != nil {\n\t\treturn err\n\t}\n\treturn fn()",
		new:  "err = m.raise(resource, t)\n\tm.give()\n\tif err != nil {\n\t\treturn err\n\t}\n\treturn fn()",
		by:   killer{inFence, "TestGuard_Do_newerTokenWaits", `54 was accepted while 41 was still writing`},
	},
	{
		name: "Guard: Load lowers a mark",
		file: "fence/guard.go",
		old:  "_ = g.admit(resource, t, (*mark).await)",
		new:  "m, _ := g.mark(resource, t)\n\t\tm.highest.Store(int64(t))",
		by:   killer{inFence, "FuzzGuard/seed#4", `require.Equal(t, &fence.StaleError{Resource: resource, Token: tok, Highest: mark}, err)`},
	},
	{
		name: "Token: the era is left out",
		file: "fence/token.go",
		old:  "return Token(int64(era)<<revisionBits | revision), nil",
		new:  "return Token(revision), nil",
		by:   killer{inFence, "TestNewToken_packsEraAndRevision", `require.Equal(t, tt.want, got)`},
	},
	{
		name: "etcdfence: no fence while a lock is held",
		file: "fence/etcdfence/held.go",
		old:  "h.kv.Txn(ctx).If(h.cmps...).Then",
		new:  "h.kv.Txn(ctx).Then",
		by:   killer{inEtcdfence, "TestNewKV_writesWhileHeld", `requireStale(t, write(t.Context(), kv, "d", "stale")`},
	},
	{
		name: "etcdfence: a key taken off its lease is held still",
		file: "fence/etcdfence/held.go",
		old:  "[]clientv3.Cmp{cmp.Clone(), onLease(key)}",
		new:  "[]clientv3.Cmp{cmp.Clone()}",
		by:   killer{inEtcdfence, "TestNewKV_keyTakenOffItsLease", `requireStale(t, second(newKV(t, c, h).Put(t.Context(), "d", "stale"))`},
	},
	{
		name: "etcdfence: no fence by the mark",
		file: "fence/etcdfence/mark.go",
		old:  "if t < highest {",
		new:  "if t < 0 {",
		by:   killer{inEtcdfence, "TestMarks_verbs", `requireStale(t, m.Claim(with(t, 41), "orders"), stale)`},
	},
	{
		name: "etcdfence: strict instead of non-strict",
		file: "fence/etcdfence/mark.go",
		old:  "if t < highest {",
		new:  "if t <= highest {",
		by:   killer{inEtcdfence, "TestMarks_verbs", `require.NoError(t, m.Check(with(t, 54), "orders"))`},
	},
	{
		name: "etcdfence: Claim raises no mark before the read",
		file: "fence/etcdfence/mark.go",
		old:  "_, err := m.commit(ctx, body{})\n\treturn err",
		new:  "return m.check(ctx)",
		by:   killer{inEtcdfence, "TestMarks_verbs", `requireStale(t, m.Claim(with(t, 41), "orders"), stale)`},
	},
	{
		name: "etcdfence: a mark is raised whatever has become of it",
		file: "fence/etcdfence/mark.go",
		old:  `clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev)`,
		new:  `clientv3.Compare(clientv3.ModRevision(key), ">", int64(-1))`,
		by:   killer{inEtcdfence, "TestMarks_KV_interleaved", `, tt.`},
	},
	{
		name: "sqlfence: no fence",
		file: "fence/internal/sqlmark/verbs.go",
		old:  "if t < mark {",
		new:  "if t < 0 {",
		by:   killer{onSQLite, "TestMarks_newerHolderComesAtEveryStep/SQLite,_journal_wal", `requireRefused(t, r.increment(as(t, older), how, nowhere), how)`},
	},
	{
		name: "sqlfence: strict instead of non-strict",
		file: "fence/internal/sqlmark/verbs.go",
		old:  "if t < mark {",
		new:  "if t <= mark {",
		by:   killer{inSqlfence, "TestDo_errorOfFn", `require.Equal(t, c.runs, runs`},
	},
	{
		name: "sqlfence: non-strict instead of strict",
		file: "fence/internal/sqlmark/do.go",
		old:  "if seen.mark < t {",
		new:  "if seen.mark <= t {",
		by:   killer{inSqlfence, "TestDo_errorOfFn", `require.Equal(t, c.runs, runs`},
	},
	{
		name: "sqlfence: no Claim before the read",
		file: "fence/internal/sqlmark/do.go",
		old:  "if seen.mark < t {\n\t\treturn errBehind\n\t}\n",
		new:  "",
		by:   killer{onSQLite, "TestMarks_newerHolderComesAtEveryStep/SQLite,_journal_wal", `requireRefused(t, r.increment(as(t, older), how, nowhere), how)`},
	},
	{
		name: "sqlfence: a row refuses its own holder's second write",
		file: "fence/internal/sqlmark/row.go",
		old:  "AND %s <= %s",
		new:  "AND %s < %s",
		by:   killer{onSQLite, "TestUpdateRow/SQLite,_journal_wal", `require.NoError(t, r.updateRow(as(t, newer), nil, account, set, 5), "MySQL`},
	},
	{
		name: "sqlfence: a row is written whatever its fence",
		file: "fence/internal/sqlmark/row.go",
		old:  "AND %s <= %s",
		new:  "AND %s <> -%s",
		by:   killer{onSQLite, "TestUpdateRow/SQLite,_journal_wal", `require.True(t, ok`},
	},
	{
		name: "sqlfence: a COMMIT whose answer was lost is repeated blindly",
		file: "fence/internal/sqlmark/do.go",
		old:  "return !errors.Is(err, Unknown.Of(e.pkg)) && e.store.transient(err)",
		new:  "return errors.Is(err, Unknown.Of(e.pkg)) || e.store.transient(err)",
		by:   killer{inSqlfence, "TestDo_answerToCommit", `require.Equal(t, c.runs, runs)`},
	},
	{
		name: "quickstart: no Claim before the read",
		file: "examples/quickstart/demo/worker.go",
		old:  "if err := book.Claim(ctx); err != nil {\n\t\treturn err\n\t}\n",
		new:  "",
		by:   killer{"examples/quickstart", "TestQuickstart_refusesTheStaleWrite", `exampletest.RequireInOrder(t, text,`},
	},
}
