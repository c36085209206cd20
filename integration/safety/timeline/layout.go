package timeline

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// Sizes, in pixels.
const (
	width   = 1600.0
	gutter  = 190.0 // for the lanes' names
	right   = 24.0
	rowHigh = 23.0
	barHigh = 15.0
	barTop  = 2.0 // below a row's top; under the bar is room for marks
	top     = 96.0
	char    = 6.2 // of the small text, on average

	mostRows = 4 // of one lane
)

// lane is one name or one actor: as many rows as it needs.
type lane struct {
	label  string
	client string // of an actor
	rows   [][]bar
	hidden int // waits for which there was no room
	marks  []mark
	sights []sight
	y      float64
}

func (l *lane) high() float64 { return float64(max(1, len(l.rows))) * rowHigh }

// section is a group of lanes.
type section struct {
	title string
	y     float64
	lanes []*lane
}

// label of a fault, on a row where it does not touch another.
type tag struct {
	fault
	row int
	x   float64
}

// picture is a scene with a place for everything.
type picture struct {
	*canvas
	*scene
	title      string
	all        [2]time.Duration // the whole history
	colours    map[string]int   // of names
	lanes      []*lane
	sections   []section
	tags       []tag
	tagRows    int
	clients    map[string]bool
	high       float64
	lanesBegin float64
}

func newPicture(s *scene, title string, from, to time.Duration) *picture {
	p := &picture{canvas: &canvas{}, scene: s, title: title, all: [2]time.Duration{from, to}, colours: map[string]int{}, clients: map[string]bool{}}
	names, actors := p.nameLanes(), p.actorLanes()
	p.lanes = append(append(p.lanes, names...), actors...)
	for _, l := range actors {
		p.clients[l.client] = true
	}
	p.placeTags()
	y := top + float64(p.tagRows)*18 + 14
	p.lanesBegin = y
	for _, sec := range []section{{title: "locks and elections", lanes: names}, {title: "actors", lanes: actors}} {
		if len(sec.lanes) == 0 {
			continue
		}
		sec.y = y + 16
		y += 24
		client := ""
		for _, l := range sec.lanes {
			if l.client != client {
				y += 6
				client = l.client
			}
			l.y = y
			y += l.high()
		}
		y += 14
		p.sections = append(p.sections, sec)
	}
	p.high = y + 34
	return p
}

// x is the place of a time.
func (p *picture) x(t time.Duration) float64 {
	t = min(max(t, p.from), p.to)
	return gutter + float64(t-p.from)/float64(p.to-p.from)*(width-gutter-right)
}

// nameLanes have the holders of each name.
func (p *picture) nameLanes() []*lane {
	byName := map[string]*lane{}
	var all []*lane
	get := func(name string) *lane {
		l := byName[name]
		if l == nil {
			l = &lane{label: name}
			byName[name] = l
			all = append(all, l)
		}
		return l
	}
	for _, b := range p.waits {
		get(b.name)
	}
	for _, b := range inTime(p.holds) {
		get(b.name).place(b)
	}
	for _, v := range p.sights {
		get(v.name).sights = append(get(v.name).sights, v)
	}
	slices.SortFunc(all, func(x, y *lane) int {
		// Elections come last.
		ex, ey := p.elections[x.label], p.elections[y.label]
		switch {
		case ex != ey && ey:
			return -1
		case ex != ey:
			return 1
		}
		return natural(x.label, y.label)
	})
	for n, l := range all {
		p.colours[l.label] = n % len(palette)
	}
	return all
}

// actorLanes have what each actor waits for and holds, and its requests.
func (p *picture) actorLanes() []*lane {
	byActor := map[string]*lane{}
	var all []*lane
	get := func(actor string) *lane {
		l := byActor[actor]
		if l == nil {
			l = &lane{label: actor, client: history.Event{Actor: actor}.Client()}
			byActor[actor] = l
			all = append(all, l)
		}
		return l
	}
	// Those who wait and those who hold, in the order of time, so that a row is taken by the first that comes.
	for _, b := range inTime(append(slices.Clone(p.waits), p.holds...)) {
		get(b.actor).place(b)
	}
	for _, m := range p.marks {
		l := get(m.actor)
		l.marks = p.merge(l.marks, m)
	}
	slices.SortFunc(all, func(x, y *lane) int { return natural(x.label, y.label) })
	return all
}

// inTime brings bars into the order of their beginning.
func inTime(bars []bar) []bar {
	slices.SortStableFunc(bars, func(x, y bar) int { return cmp.Compare(x.from, y.from) })
	return bars
}

// place puts a bar on the first row where it does not overlap. A wait and the tenure that it leads to share one. Where all
// rows are taken waits are left out and counted; tenures are drawn over others.
func (l *lane) place(b bar) {
	for n, row := range l.rows {
		if row[len(row)-1].to <= b.from {
			l.rows[n] = append(row, b)
			return
		}
	}
	switch {
	case len(l.rows) < mostRows:
		l.rows = append(l.rows, []bar{b})
	case b.token != 0:
		l.rows[mostRows-1] = append(l.rows[mostRows-1], b)
	default:
		l.hidden++
	}
}

// merge adds a mark, or counts it with another that could not be told from it.
func (p *picture) merge(marks []mark, m mark) []mark {
	for n := len(marks) - 1; n >= 0 && p.x(m.at)-p.x(marks[n].at) < 5; n-- {
		if old := &marks[n]; old.refused == m.refused && old.name == m.name {
			old.n++
			return marks
		}
	}
	return append(marks, m)
}

// placeTags finds a row for each fault's label.
func (p *picture) placeTags() {
	var ends []float64 // of each row
	for _, f := range p.faults {
		long := float64(len(f.label()))*char + 12
		x := max(gutter, min(p.x(f.from), width-4-long)) // at the right end it says its name to the left
		end := max(p.x(f.to), x+long) + 4
		row := slices.IndexFunc(ends, func(e float64) bool { return e <= x })
		if row < 0 {
			row = len(ends)
			ends = append(ends, 0)
		}
		ends[row] = end
		p.tags = append(p.tags, tag{f, row, x})
	}
	p.tagRows = len(ends)
}

func (f fault) label() string {
	if f.target == "" {
		return f.name
	}
	return f.name + ": " + f.target
}

// ticks are round times, at most a dozen or so.
func (p *picture) ticks() (all []time.Duration, step time.Duration) {
	rough := float64(p.to-p.from) / 12
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, m := range []float64{1, 2, 5, 10} {
		if step = time.Duration(power * m); float64(step) >= rough {
			break
		}
	}
	step = max(step, 1)
	for t := p.from.Truncate(step); t <= p.to; t += step {
		if t >= p.from {
			all = append(all, t)
		}
	}
	return all, step
}

// natural compares names so that 2 comes before 10.
func natural(x, y string) int {
	for x != "" && y != "" {
		dx, dy := digits(x), digits(y)
		if dx > 0 && dy > 0 {
			nx, ny := strings.TrimLeft(x[:dx], "0"), strings.TrimLeft(y[:dy], "0")
			if c := cmp.Or(cmp.Compare(len(nx), len(ny)), strings.Compare(nx, ny)); c != 0 {
				return c
			}
			x, y = x[dx:], y[dy:]
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Compare(len(x), len(y))
}

// digits is how many of them s begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
