package fence_test

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/leasefence/leasefence/fence"
)

func BenchmarkGuard_Check(b *testing.B) {
	var g fence.Guard
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Check("orders", 54); err != nil {
			b.Fatal(err)
		}
	}
}

// Sixteen goroutines, on one resource and on many. With -cpu 1,2,… the figures show whether it scales with the cores.
func BenchmarkGuard_Check_parallel(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run("goroutines=16/resources="+strconv.Itoa(n), func(b *testing.B) {
			var g fence.Guard
			names := fill(b, &g, n)
			var began atomic.Int64
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0))) // for each of GOMAXPROCS
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := int(began.Add(1)) * n / 16; pb.Next(); i++ {
					if err := g.Check(names[i%n], 54); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// fill claims n resources with token 54 and returns their names.
func fill(b *testing.B, g *fence.Guard, n int) []string {
	b.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = "orders/" + strconv.Itoa(i)
		if err := g.Claim(names[i], 54); err != nil {
			b.Fatal(err)
		}
	}
	return names
}
