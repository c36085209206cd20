package fencetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// judge returns an error if the entries at the end prove a fault of the fence.
func (s Store) judge(all []*write, entries []Entry) error {
	there := make(map[Entry]bool, len(entries))
	for i, e := range entries {
		if there[e] {
			return fmt.Errorf("entry %d is there twice", e.ID)
		}
		if s.Ordered && i > 0 && entries[i-1].Token > e.Token {
			return fmt.Errorf("entry %d of token %d comes after one of token %d", e.ID, e.Token, entries[i-1].Token)
		}
		there[e] = true
	}
	for _, w := range all {
		stale, refused := errors.AsType[*fence.StaleError](w.err)
		switch {
		case refused && stale.Highest != 0 && stale.Highest <= stale.Token:
			return fmt.Errorf("entry %d was refused, though its token %d is not below %d", w.ID, stale.Token, stale.Highest)
		case refused && stale.Read != w.reads:
			return fmt.Errorf("entry %d of token %d was refused: %w", w.ID, w.Token, w.err)
		case w.reads && (w.err != nil || w.saw == nil):
			continue
		case w.reads: // a read leaves no entry
		case w.err == nil && !there[w.Entry]:
			return fmt.Errorf("entry %d was acknowledged and is not there", w.ID)
		case errors.Is(w.err, fence.ErrStale) && there[w.Entry] && (s.Unknown == nil || !errors.Is(w.err, s.Unknown)):
			return fmt.Errorf("entry %d was refused and is there", w.ID)
		case !there[w.Entry] || w.saw == nil:
			continue
		}
		for seen := range w.saw {
			if seen.Token > w.Token {
				return fmt.Errorf("the writer of entry %d of token %d had read entry %d of token %d",
					w.ID, w.Token, seen.ID, seen.Token)
			}
		}
		for _, other := range all {
			if err := w.misses(other, there); err != nil {
				return err
			}
		}
	}
	return nil
}

// misses returns an error if w, whose entry is there, had to read the entry of other and did not.
func (w *write) misses(other *write, there map[Entry]bool) error {
	if w == other || !there[other.Entry] || w.saw[other.Entry] {
		return nil
	}
	before := other.ended.Before(w.begun)
	switch {
	case other.Token < w.Token:
		return fmt.Errorf("entry %d of token %d was written past entry %d of token %d", other.ID, other.Token, w.ID, w.Token)
	case other.Token > w.Token:
		return nil
	case before && other.err == nil:
		return fmt.Errorf("entry %d has not read entry %d, which was acknowledged before", w.ID, other.ID)
	case before && w.form.Settles:
		return fmt.Errorf("entry %d has not read entry %d, which was given up before and was written", w.ID, other.ID)
	case w.form.Alone != "" && w.form.Alone == other.form.Alone && other.saw != nil && !other.saw[w.Entry]:
		return fmt.Errorf("entries %d and %d ran alone, and neither has read the other", w.ID, other.ID)
	}
	return nil
}

// history formats the calls in the order of their begin, for an error.
func history(all []*write, entries []Entry) string {
	slices.SortFunc(all, func(a, b *write) int { return a.begun.Compare(b.begun) })
	var text strings.Builder
	for _, w := range all {
		var saw []int64
		for e := range w.saw {
			saw = append(saw, e.ID)
		}
		slices.Sort(saw)
		fmt.Fprintf(&text, "\n%8s to %8s  entry %3d  token %d  %-40s saw %v: %v",
			w.begun.Sub(all[0].begun).Round(10*time.Microsecond), w.ended.Sub(all[0].begun).Round(10*time.Microsecond),
			w.ID, w.Token, w.form.Name, saw, w.err)
	}
	fmt.Fprintf(&text, "\nthere: %v", entries)
	return text.String()
}
