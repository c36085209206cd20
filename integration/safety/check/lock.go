package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// window is how many acquisitions or requests porcupine is given at once, where the history can be cut.
const window = 100

// change is what a lock goes through: an acquisition, or its end. An acquisition ends when its handle does, which is some
// time between the last moment at which it is known to be live and the one at which its caller knows that it is not.
type change struct {
	of   *acquisition
	end  bool
	turn int // of an acquisition: its place by token in its window
}

// lockState is a lock: who holds it, one writer or any number of readers, and how many have in this window. Where most is not 0 it
// is a semaphore, and who has a permit stands for a reader. Tokens increase, so in
// each window the order of the acquisitions is that of their tokens, and no other needs to be tried: of two readers, the one with the
// larger token was not let in before the other.
type lockState struct {
	writer  *acquisition
	readers []*acquisition // not changed
	most    int            // of them at a time; 0: any number
	turns   int
}

// together reports whether a holds the lock beside others.
func (s lockState) together(a *acquisition) bool {
	return a.shared() || s.most > 0 && a.enter.Verb.OfPermit()
}

func lockModel(first lockState) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(lockState), input.(change)
			if in.end {
				return s.end(in.of)
			}
			return s.begin(in)
		},
		Equal: func(x, y any) bool {
			s, t := x.(lockState), y.(lockState)
			return s.writer == t.writer && s.turns == t.turns && slices.Equal(s.readers, t.readers)
		},
	}
}

func (s lockState) begin(in change) (bool, lockState) {
	if s.writer != nil || in.turn != s.turns {
		return false, s
	}
	next := lockState{most: s.most, turns: s.turns + 1}
	if s.together(in.of) {
		next.readers = append(slices.Clip(s.readers), in.of)
		return s.most == 0 || len(s.readers) < s.most, next
	}
	next.writer = in.of
	return len(s.readers) == 0, next
}

func (s lockState) end(a *acquisition) (bool, lockState) {
	next := s
	if !s.together(a) {
		next.writer = nil
		return s.writer == a, next
	}
	i := slices.Index(s.readers, a)
	if i < 0 {
		return false, s
	}
	next.readers = slices.Delete(slices.Clone(s.readers), i, i+1)
	return true, next
}

// locks gives each name to porcupine: the history of its handles must be one of a lock.
//
// A name's history is cut when a writer's handle is returned that is known to be live then. Whoever's grant was returned before has
// had its turn before, whoever else has got it has ended by then, and whoever is granted later has its turn later: were one
// of them different, two would have held the lock at once. So each part begins with a known holder, and the parts are
// right if and only if the whole is. Of a handle that is not known to have been live this cannot be said, since its caller
// may have been told late that it had its turn: there is no cut before that. Permits of a semaphore are given whole.
func (c *checker) locks() {
	names := map[string][]*acquisition{}
	for _, a := range c.ops {
		if a.grant != nil {
			names[a.name()] = append(names[a.name()], a)
		}
	}
	windows, undecided := 0, 0
	window := func(name string, first lockState, all []*acquisition, last bool) {
		ops, inOrder := lockOperations(first.writer, all, last)
		windows++
		result := porcupine.Illegal
		if inOrder {
			result = porcupine.CheckOperationsTimeout(lockModel(first), ops, c.opts.Timeout)
		}
		switch result {
		case porcupine.Unknown:
			undecided++
		case porcupine.Illegal:
			c.notALock(name, all)
		default:
		}
	}
	for name, all := range names {
		slices.SortStableFunc(all, func(x, y *acquisition) int { return cmp.Compare(x.grant.At, y.grant.At) })
		var holder *acquisition // when the window begins, a writer
		late := lateTokens(all)
		for len(all) > 0 {
			n := cut(all, late[len(late)-len(all):])
			window(name, lockState{writer: holder}, all[:n], n == len(all))
			holder, all = all[n-1], all[n:]
		}
	}
	for name, all := range c.semaphores() {
		window(name, lockState{most: c.permits(all[0])}, all, true)
	}
	c.count("windows of locks for porcupine", windows)
	c.count("  undecided", undecided)
	c.report.Undecided += int64(undecided)
}

// lateTokens are the lowest tokens, from each acquisition to the last, of handles that are not known to have been live.
func lateTokens(all []*acquisition) []fence.Token {
	late := make([]fence.Token, len(all))
	lowest := fence.Token(math.MaxInt64)
	for n, a := range slices.Backward(all) {
		if _, _, live := a.live(); !live {
			lowest = min(lowest, a.token())
		}
		late[n] = lowest
	}
	return late
}

// cut returns how many acquisitions the next window has.
func cut(all []*acquisition, late []fence.Token) int {
	for n := window; n < len(all); n++ {
		_, _, live := all[n-1].live()
		if live && !all[n-1].shared() && all[n-1].grant.At < all[n].grant.At && all[n-1].token() <= late[n] {
			return n
		}
	}
	return len(all)
}

// lockOperations are those of one window: of its acquisitions and of the holder from the window before. It reports whether
// every token is larger than the holder's.
func lockOperations(holder *acquisition, all []*acquisition, last bool) (ops []porcupine.Operation, inOrder bool) {
	begin, end := int64(0), int64(math.MaxInt64)
	if !last {
		end = int64(all[len(all)-1].grant.At)
	}
	inOrder = true
	tokens := make([]fence.Token, 0, len(all))
	for _, a := range all {
		tokens = append(tokens, a.token())
	}
	slices.Sort(tokens)
	if holder != nil {
		begin = int64(holder.grant.At)
		inOrder = tokens[0] > holder.token()
		ops = append(ops, endOperation(holder, begin, end))
	}
	for n, a := range all {
		turn, _ := slices.BinarySearch(tokens, a.token())
		ops = append(ops, porcupine.Operation{
			Input: change{of: a, turn: turn}, Call: max(begin, int64(a.enter.At)), Return: int64(a.grant.At),
		})
		if last || n < len(all)-1 { // the last one ends in the next window
			ops = append(ops, endOperation(a, begin, end))
		}
	}
	return ops, inOrder
}

func endOperation(a *acquisition, begin, end int64) porcupine.Operation {
	from, to := a.enter.At, a.ended()
	if a.lastLive != nil {
		from = min(a.lastLive.At, a.excused)
	}
	if a.died > 0 {
		to = forever // it says when the kill began
	}
	call := max(begin, int64(from))
	return porcupine.Operation{Input: change{of: a, end: true}, Call: call, Return: max(call, min(end, int64(to)))}
}

// notALock shows the window's grants, not too many of them.
func (c *checker) notALock(name string, all []*acquisition) {
	var events []*history.Event
	for _, a := range all[:min(len(all), 10)] {
		events = append(events, a.grant, a.lastLive)
	}
	c.violation(Violation{
		c.exclusion(name), "lock", name,
		fmt.Sprintf("no order of %d acquisitions and their ends, from %v to %v, is that of a lock",
			len(all), all[0].grant.At.Round(time.Millisecond), all[len(all)-1].grant.At.Round(time.Millisecond)),
		show(events...),
	})
}
