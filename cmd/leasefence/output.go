package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/leasefence/leasefence/lease"
)

func terminalWidth(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// printJSON prints v as one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(visible{w})
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// print prints v in JSON, or text.
func (a *app) print(v any, text string) error {
	if a.output == outputJSON {
		return printJSON(a.out, v)
	}
	_, err := io.WriteString(a.out, text)
	return err
}

// visible is a writer of JSON that escapes invisible characters, and those that turn the direction of the text after
// them. Each Write gets a whole value.
type visible struct{ to io.Writer }

func (v visible) Write(p []byte) (int, error) {
	hidden := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) } // the encoder writes '\n' only at the end of a value
	if !bytes.ContainsFunc(p, hidden) {
		return v.to.Write(p)
	}
	var text []byte
	for _, r := range string(p) {
		if !hidden(r) {
			text = utf8.AppendRune(text, r)
			continue
		}
		for _, half := range utf16.Encode([]rune{r}) {
			text = fmt.Appendf(text, `\u%04x`, half)
		}
	}
	if _, err := v.to.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// harmless makes foreign text safe for a line on a terminal: it quotes text that has invisible characters or is no
// UTF-8.
func harmless(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// table prints aligned rows below a header, each in one line of the terminal.
type table struct {
	to    io.Writer
	width int // of the terminal, 0 for none
	rows  [][]string
}

func (a *app) newTable(header ...string) *table {
	return &table{to: a.out, width: a.width, rows: [][]string{header}}
}

func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = harmless(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// flush prints the rows that were added since the last flush.
func (t *table) flush() error {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 9, 0, 2, ' ', 0)
	for _, row := range t.rows {
		_, _ = io.WriteString(w, strings.Join(row, "\t")+"\n")
	}
	_ = w.Flush() // a builder does not fail
	t.rows = t.rows[:0]
	for line := range strings.Lines(aligned.String()) {
		if _, err := io.WriteString(t.to, fit(line, t.width)); err != nil {
			return err
		}
	}
	return nil
}

// fit cuts a line at the edge of a terminal; width is 0 for none.
func fit(line string, width int) string {
	if width == 0 {
		return line
	}
	return clip(strings.TrimSuffix(line, "\n"), width) + "\n"
}

// clip cuts a text to at most so many characters, the last of them "…".
func clip(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:max(most-1, 0)]) + "…"
}

// contender is a [lease.Contender] in JSON.
type contender struct {
	Key   string      `json:"key"`
	Owner *string     `json:"owner,omitempty"`
	Class lease.Class `json:"class"`
	Token string      `json:"token"` // a string, as fence.Token: some readers of JSON round numbers
	Lease string      `json:"lease"`
	TTL   *int64      `json:"ttl_seconds,omitempty"`
}

// queue is a [lease.Queue] in JSON.
type queue struct {
	Name    string      `json:"name"`
	Holders []contender `json:"holders"`
	Waiters []contender `json:"waiters"`
}

// known says what was read of a queue besides the names of its keys; JSON leaves out the rest.
type known struct{ owners, ttls bool }

func queueOf(q lease.Queue, k known) queue {
	return queue{Name: q.Name, Holders: contenders(q.Holders, k), Waiters: contenders(q.Waiters, k)}
}

func contenders(all []lease.Contender, k known) []contender {
	list := make([]contender, 0, len(all))
	for _, c := range all {
		one := contender{Key: c.Key, Class: c.Class, Token: tokenText(c), Lease: leaseText(c.Lease)}
		if k.owners {
			one.Owner = &c.Owner
		}
		if k.ttls {
			one.TTL = new(int64(c.TTL / time.Second))
		}
		list = append(list, one)
	}
	return list
}

// leaseText is a lease in hex, as etcdctl prints it.
func leaseText(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

// tokenText is the token of a contender, in era 0.
func tokenText(c lease.Contender) string { return strconv.FormatInt(c.Revision, 10) }
