//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// browser starts a headless browser for all tests and returns the context of its first tab. TestMain ends it.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	home := filepath.Join(filepath.Dir(program), "browser")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(home), chromedp.DisableGPU,
		chromedp.Env("HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home), chromedp.WindowSize(1280, 860),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	allocator, endAll := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, endFirst := chromedp.NewContext(allocator)
	endBrowser = func() {
		_ = chromedp.Cancel(ctx) // it waits for the process
		endFirst()
		endAll()
	}
	return ctx, chromedp.Do(ctx)
})

var endBrowser = func() {} // set when the browser starts

type tab struct {
	ctx context.Context //nolint:containedctx // chromedp identifies a tab by its context
}

// open opens an address in a new tab, which the end of the test closes.
func open(t *testing.T, url string) *tab {
	t.Helper()
	first, err := browser()
	if errors.Is(err, exec.ErrNotFound) {
		etcdtest.Skip(t, "no chromium: apt-get install chromium")
	}
	require.NoError(t, err)
	ctx, closeTab := chromedp.NewContext(first)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	t.Cleanup(cancel)
	p := &tab{ctx}
	p.run(t, chromedp.Navigate(url))
	return p
}

func (p *tab) run(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(p.ctx, actions...))
}

// eval evaluates an expression in the page. If the value is a promise, eval waits for it.
func eval[T any](t *testing.T, p *tab, expression string) T {
	t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(t, err)
	return value
}

func (p *tab) await(t *testing.T, expression string) {
	t.Helper()
	if !p.comes(t, expression, patience) {
		require.Fail(t, "never true on the page: "+expression, eval[string](t, p, `document.body.innerText`))
	}
}

// comes reports whether an expression in the page becomes true in time. It evaluates the expression after each change
// of the page.
func (p *tab) comes(t *testing.T, expression string, in time.Duration) bool {
	t.Helper()
	return eval[bool](t, p, fmt.Sprintf(`new Promise((done) => {
		const is = () => { try { return Boolean(%s); } catch { return false; } };
		if (is()) return done(true);
		const end = (how) => { seen.disconnect(); clearTimeout(late); done(how); };
		const seen = new MutationObserver(() => { if (is()) end(true); });
		seen.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
		const late = setTimeout(() => end(is()), %d);
	})`, expression, in.Milliseconds()))
}

func (p *tab) has(t *testing.T, selector, text string) {
	t.Helper()
	p.await(t, fmt.Sprintf(`document.querySelector(%q).textContent.includes(%s)`, selector, quoted(t, text)))
}

// quoted is a value as the JSON that JSON.stringify in the browser returns.
func quoted(t *testing.T, v any) string {
	t.Helper()
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(v))
	return strings.TrimSuffix(text.String(), "\n")
}

// queueShown is an expression for the rows of the chosen name on the page, in the form of [rowsOf].
const queueShown = `JSON.stringify(["holders", "waiters"].map((id) => [...document.getElementById(id).rows].map((row) =>
	[...row.cells].slice(0, 3).map((cell) => cell.textContent).concat(row.cells[4].textContent, row.title))))`

// rowsOf are the rows that the page has to show for a queue.
func rowsOf(q lease.Queue) [2][][]string {
	all := [2][][]string{{}, {}}
	for i, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
		for _, c := range list {
			below := strings.TrimPrefix(c.Key, q.Name+"/")
			all[i] = append(all[i], []string{fmt.Sprint(c.Revision), visible(c.Owner), string(c.Class), visible(below), "lease " + hex(c.Lease)})
		}
	}
	return all
}
