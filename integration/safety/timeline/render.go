package timeline

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// draw writes the picture, from the back to the front.
func (p *picture) draw(w io.Writer) {
	p.rect("", 0, 0, width, p.high, `class="bg"`)
	p.text(20, 34, "h", p.title)
	p.text(20, 54, "s", p.subtitle())
	p.legend()
	p.background()
	p.axis()
	p.faultBands()
	for _, sec := range p.sections {
		p.text(20, sec.y, "c", strings.ToUpper(sec.title))
		for _, l := range sec.lanes {
			p.lane(l)
		}
	}
	p.page(w, p.title, p.high)
}

func (p *picture) subtitle() string {
	text := fmt.Sprintf("%s to %s", seconds(p.from), seconds(p.to))
	if p.from > p.all[0] || p.to < p.all[1] {
		text += fmt.Sprintf(" of a history of %s", seconds(p.all[1]-p.all[0]))
	}
	refused := 0
	for _, m := range p.marks {
		if m.refused {
			refused++
		}
	}
	return fmt.Sprintf("%s: %d held, %d requests accepted, %d refused, %d faults",
		text, len(p.holds), len(p.marks)-refused, refused, len(p.faults))
}

func seconds(d time.Duration) string {
	return strings.TrimSuffix(strconv.FormatFloat(d.Seconds(), 'f', 3, 64), ".000") + " s"
}

// legend explains the signs.
func (p *picture) legend() {
	x, y := width-850.0, 50.0 // beside the subtitle
	sign := func(w float64, draw func(x float64), text string) {
		draw(x)
		p.text(x+w+6, y+4, "t", text)
		x += w + 22 + float64(len(text))*char
	}
	colour := palette[0]
	sign(22, func(x float64) { p.waitBar("", x, y-6, 22, 12, colour) }, "waits")
	sign(22, func(x float64) { p.holdBar("", x, y-6, 22, 12, colour, "") }, "holds, with its token")
	sign(22, func(x float64) { p.doubtBar("", x, y-6, 22, 12, colour) }, "not asked")
	sign(25, func(x float64) { p.holdBar("", x, y-6, 22, 12, colour, ""); p.endCap(x+22, y-6, 12) }, "lost or killed")
	sign(8, func(x float64) { p.accepted(x+4, y, colour) }, "accepted")
	sign(8, func(x float64) { p.refusedMark(mark{n: 1}, x+4, y) }, "refused")
	sign(16, func(x float64) { p.rect("", x, y-6, 16, 12, `class="g"`) }, "fault")
	sign(8, func(x float64) { p.seen("", x+4, y+3, colour) }, "observed")
}

func (p *picture) background() {
	for n, l := range p.lanes {
		if n%2 == 0 {
			p.rect("", 12, l.y, width-24, l.high(), `class="row" rx="3"`)
		}
	}
}

// axis has the time at the top and at the bottom.
func (p *picture) axis() {
	ticks, step := p.ticks()
	unit, digits := time.Second, 0
	for step < unit && digits < 6 { // as many digits as tell the ticks apart
		unit /= 10
		digits++
	}
	for _, t := range ticks {
		x := p.x(t)
		p.add("", "path", `class="grid" d="M%.1f %.1fV%.1f"`, x, top-10, p.high-30)
		text := strconv.FormatFloat(t.Seconds(), 'f', digits, 64) + " s"
		p.text(x, top-16, "t m", text)
		p.text(x, p.high-14, "t m", text)
	}
}

// faultBands show when each was on: behind the lanes of its client, or behind all.
func (p *picture) faultBands() {
	if len(p.tags) > 0 {
		p.text(20, top+10, "c", "FAULTS")
	}
	for _, t := range p.tags {
		x := p.x(t.from)
		w := max(p.x(t.to)-x, 2)
		tell := fmt.Sprintf("%s, %v to %v", t.label(), round(t.from), round(t.to))
		if p.clients[t.target] {
			for _, l := range p.lanes {
				if l.client == t.target {
					p.rect(tell, x, l.y, w, l.high(), `class="g"`)
				}
			}
		} else {
			p.rect(tell, x, top-8, w, p.high-top-24, `class="f"`)
		}
		y := top + float64(t.row)*18
		p.rect(tell, x, y-3, w, 15, `class="tag" rx="3"`)
		p.text(t.x+5, y+8.5, "ft", t.label())
	}
}

func (p *picture) lane(l *lane) {
	label := l.label
	if l.client == "" && p.elections[l.label] {
		label += " (election)"
	}
	if l.hidden > 0 {
		label += fmt.Sprintf(" +%d", l.hidden)
	}
	p.text(gutter-12, l.y+barTop+barHigh/2+4, "l e", clip(label, 27))
	for n, row := range l.rows {
		y := l.y + float64(n)*rowHigh + barTop
		for k, b := range row {
			next := width - right
			if k+1 < len(row) {
				next = p.x(row[k+1].from)
			}
			p.bar(l, b, y, next)
		}
	}
	for _, v := range l.sights {
		p.seen(fmt.Sprintf("%s saw token %d at %v", v.actor, v.token, round(v.at)), p.x(v.at), l.y+l.high()-0.5, p.colour(v.name))
	}
	p.laneMarks(l)
}

// laneMarks are put below the bars, so that tokens stay readable; a refusal is as high as the row.
func (p *picture) laneMarks(l *lane) {
	for _, m := range l.marks {
		y := l.y + p.rowOf(l, m)*rowHigh
		if m.refused {
			p.refusedMark(m, p.x(m.at), y+barTop+barHigh/2)
		} else {
			p.accepted(p.x(m.at), y+rowHigh-3, p.colour(m.name))
		}
	}
}

// rowOf is the row of the tenure that a request belongs to; the first one's, if that cannot be seen.
func (p *picture) rowOf(l *lane, m mark) float64 {
	for n, row := range l.rows {
		for _, b := range row {
			if b.token == m.token && b.name == m.name {
				return float64(n)
			}
		}
	}
	return 0
}

func (p *picture) colour(name string) string { return palette[p.colours[name]] }

func (p *picture) bar(l *lane, b bar, y, next float64) {
	x := p.x(b.from)
	w := max(p.x(b.to)-x, 1)
	if b.token == 0 {
		if w < 1.5 && b.ending == released {
			return // it was served at once
		}
		p.waitBar(b.tell(), x, y+2, w, barHigh-4, p.colour(b.name))
		return
	}
	sure := max(p.x(b.sure)-x, 1)
	if w-sure > 1 {
		p.doubtBar(b.tell(), x+sure, y, w-sure, barHigh, p.colour(b.name))
	}
	p.holdBar(b.tell(), x, y, sure, barHigh, p.colour(b.name), p.caption(l, b, sure))
	if (b.ending == lost || b.ending == killed) && b.to <= p.to {
		p.endCap(min(x+w, max(x, next)), y, barHigh)
	}
}

// caption is as much as fits: the token, and in the lane of a name also who holds it.
func (p *picture) caption(l *lane, b bar, w float64) string {
	token := strconv.FormatInt(int64(b.token), 10)
	choices := []string{token}
	if l.client == "" {
		client := history.Event{Actor: b.actor}.Client()
		choices = []string{b.actor + " · " + token, client + " · " + token, token}
	} else {
		choices = append([]string{b.name + " · " + token}, choices...)
	}
	for _, text := range choices {
		if float64(len([]rune(text)))*char+6 <= w {
			return text
		}
	}
	return ""
}

func (p *picture) waitBar(tell string, x, y, w, h float64, colour string) {
	p.rect(tell, x, y, w, h, fmt.Sprintf(`rx="2" fill=%q fill-opacity=".2" stroke=%q stroke-opacity=".55" stroke-width=".8"`, colour, colour))
}

func (p *picture) holdBar(tell string, x, y, w, h float64, colour, caption string) {
	p.rect(tell, x, y, w, h, fmt.Sprintf(`rx="%.1f" fill=%q`, min(3, w/3), colour))
	if caption != "" {
		p.text(x+w/2, y+h/2+3.6, "b m", caption)
	}
}

// doubtBar is the time between the last moment at which a handle is known to be live and its end.
func (p *picture) doubtBar(tell string, x, y, w, h float64, colour string) {
	p.rect(tell, x, y+h/4, w, h/2, fmt.Sprintf(`fill=%q fill-opacity=".5"`, colour))
}

// endCap says that a tenure did not end on purpose.
func (p *picture) endCap(x, y, h float64) {
	p.add("", "path", `d="M%.1f %.1fv%.1f" stroke=%q stroke-width="3"`, x, y-2, h+4, red)
}

// accepted marks are many: the browser tells nothing of them.
func (p *picture) accepted(x, y float64, colour string) {
	p.add("", "circle", `cx="%.1f" cy="%.1f" r="2.1" fill=%q`, x, y, colour)
}

func (p *picture) refusedMark(m mark, x, y float64) {
	p.add(m.tell(), "path", `d="M%.1f %.1fl7 7m0 -7l-7 7" stroke=%q stroke-width="2.2" fill="none"`, x-3.5, y-3.5, red)
}

// seen is a small triangle that points to the bar above it.
func (p *picture) seen(tell string, x, y float64, colour string) {
	p.add(tell, "path", `d="M%.1f %.1fl3.5 5h-7z" fill=%q class="halo"`, x, y-5, colour)
}

func (m mark) tell() string {
	if m.name == "" {
		return ""
	}
	text := fmt.Sprintf("%s of %s at %s, token %d, %v: refused", m.verb, m.actor, m.name, m.token, round(m.at))
	if m.n > 1 {
		text += fmt.Sprintf("\nand %d more", m.n-1)
	}
	return text
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return "…" + string(r[len(r)-n+1:])
}
