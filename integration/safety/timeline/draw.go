package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// Options choose what is drawn. The zero value draws everything that fits.
type Options struct {
	From  time.Duration // default: the first event
	To    time.Duration // after From; default: the last event, or as far as a picture goes
	Names []string      // of locks, elections and resources; default: all
	Title string        // default: "Who held what"
}

// most is how many elements a picture has, text included.
const most = 2000

// Draw writes the picture of a history. Without anything to draw in the part that is chosen it writes nothing and
// returns an error.
func Draw(w io.Writer, events []history.Event, opts Options) error {
	s := newScene(events, opts.Names)
	from, to := s.from, s.to
	if opts.From != 0 {
		from = opts.From
	}
	if opts.To != 0 {
		to = opts.To
	}
	if from >= to {
		return fmt.Errorf("timeline: from %v to %v, want From before To; the history is from %v to %v", from, to, s.from, s.to)
	}
	if opts.Title == "" {
		opts.Title = "Who held what"
	}
	for {
		p := newPicture(s.part(from, to), opts.Title, s.from, s.to)
		if len(p.lanes) == 0 {
			return errors.New("timeline: nothing to draw: nobody waits for or holds one of the names in this part")
		}
		var page bytes.Buffer
		p.draw(&page)
		if p.elements <= most || to-from <= time.Millisecond {
			_, err := w.Write(page.Bytes())
			return err
		}
		// Not more than the excess asks for, as far as elements are spread evenly.
		share := min(max(most/float64(p.elements), 0.2), 0.95)
		to = from + time.Duration(float64(to-from)*share)
	}
}

// part is what can be seen between two times.
func (s *scene) part(from, to time.Duration) *scene {
	p := &scene{from: from, to: to, elections: s.elections}
	for _, b := range s.waits {
		if b.from < to && b.to >= from {
			p.waits = append(p.waits, b)
		}
	}
	for _, b := range s.holds {
		if b.from < to && b.to >= from {
			p.holds = append(p.holds, b)
		}
	}
	for _, m := range s.marks {
		if from <= m.at && m.at <= to {
			p.marks = append(p.marks, m)
		}
	}
	for _, f := range s.faults {
		if f.from < to && f.to >= from {
			p.faults = append(p.faults, f)
		}
	}
	for _, v := range s.sights {
		if from <= v.at && v.at <= to {
			p.sights = append(p.sights, v)
		}
	}
	return p
}
