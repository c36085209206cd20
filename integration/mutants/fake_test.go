package mutants_test

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
