package election

// What an observer may be behind by, before it is taken to the latest.
const (
	maxSightings = 128     // changes
	maxBytes     = 1 << 20 // bytes of values, of more changes than one
)

// sighting is who led from a revision on.
type sighting struct {
	leader  Leader
	rev     int64
	history int // revisions of different histories do not compare; see hub.history
}

// backlog holds the latest sightings for the observers that have not been shown them yet. They are numbered from 0.
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
		b.kept[0] = sighting{} // so that its value can go before the array does
		b.kept = b.kept[1:]
		b.first++
	}
}

// at returns sighting number n, or the latest if that is not kept any more, and the number of the one after it. There
// is none if n is the end.
func (b *backlog) at(n int) (s sighting, next int, ok bool) {
	if n >= b.end() {
		return sighting{}, n, false
	}
	if n < b.first {
		n = b.end() - 1
	}
	return b.kept[n-b.first], n + 1, true
}
