package rig

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// recorder records errors instead of failing a test.
type recorder struct {
	testing.TB

	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestWitness_Check(t *testing.T) {
	began := time.Now()
	span := func(token fence.Token, from, last int) *Span {
		over := make(chan struct{})
		close(over)
		return &Span{token, began.Add(time.Duration(from)), began.Add(time.Duration(last)), over}
	}
	neverLive := span(2, 5, 0)
	neverLive.Last = time.Time{}
	for name, tc := range map[string]struct {
		spans []*Span
		least int
		want  string
	}{
		"one after the other": {[]*Span{span(1, 0, 4), span(3, 5, 6)}, 2, ""},
		"two at once":         {[]*Span{span(1, 0, 5), span(3, 5, 6)}, 2, "token 3 was held before the smaller token 1 ended, by 0s"},
		"one outlives two others": {
			[]*Span{span(1, 0, 9), span(2, 3, 4), span(3, 7, 8)},
			3,
			"token 2 was held before the smaller token 1 ended, by 6ns; token 3 was held before the smaller token 1 ended, by 2ns",
		},
		"tokens out of order": {[]*Span{span(3, 0, 4), span(1, 5, 6)}, 2, "token 3 was held before the smaller token 1 ended, by 6ns"},
		"one token twice":     {[]*Span{span(1, 0, 4), span(1, 5, 6)}, 2, "token 1 was granted twice"},
		"too few":             {[]*Span{span(1, 0, 4), neverLive}, 2, "1 of 2 holds were seen live, want 2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Witness{spans: tc.spans}
			var r recorder
			w.Check(&r, tc.least)
			require.Equal(t, tc.want, strings.Join(r.errors, "; "))
		})
	}
}
