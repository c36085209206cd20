package election

// How far an observer may be behind before it skips to the latest.
const (
	maxSightings = 128     // changes
	maxBytes     = 1 << 20 // bytes of values, if there is more than one change
)

// sighting is who led from a revision on.
type sighting struct {
	leader  Leader
	rev     int64
	history int // revisions of different histories do not compare; see hub.history
}

// backlog keeps the latest sightings for observers that are behind. Sightings are numbered from 0.
type backlog struct {
	first int // the number of kept[0]
	kept  []sighting
	bytes int // of values in kept
}

// end is the number of the next sighting.
func (b *backlog) end() int { return b.first + len(b.kept) }

func (b *backlog) add(s sighting) {
	b.kept = append(b.kept, s)
	b.bytes += len(s.leader.Value)
	for len(b.kept) > 1 && (len(b.kept) > maxSightings || b.bytes > maxBytes) {
		b.bytes -= len(b.kept[0].leader.Value)
		b.kept[0] = sighting{} // frees its value, which the array would keep
		b.kept = b.kept[1:]
		b.first++
	}
}

// at returns sighting number n, or the latest if n is not kept any more, and the number of the next one. Ok is false if
// n is yet to come.
func (b *backlog) at(n int) (s sighting, next int, ok bool) {
	if n >= b.end() {
		return sighting{}, n, false
	}
	if n < b.first {
		n = b.end() - 1
	}
	return b.kept[n-b.first], n + 1, true
}
