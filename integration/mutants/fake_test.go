package mutants_test

// asEtcd is the test that compares the fake etcd with a real one.
var asEtcd = killer{"integration/differential", "TestFake", `require.Equal(t, list(etcd, answers), list(fake, answers)`}

var fakeMutants = []mutant{
	{
		name: "fake etcd: a deletion of nothing makes a revision",
		file: "internal/fakeetcd/txn.go",
		old:  "\tif len(t.changes) == 0 {\n\t\treturn\n\t}\n",
		new:  "",
		by:   asEtcd,
	},
	{
		name: "fake etcd: the value of a missing key is empty",
		file: "internal/fakeetcd/txn.go",
		old:  "return c.Target != pb.Compare_VALUE && compareKV(",
		new:  "return compareKV(",
		by:   asEtcd,
	},
	{
		name: "fake etcd: a watch of the past misses its first revision",
		file: "internal/fakeetcd/watch.go",
		old:  "w.minRev, w.unsynced = w.start, true",
		new:  "w.minRev, w.unsynced = w.start+1, true",
		by:   asEtcd,
	},
}
