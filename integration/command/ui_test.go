//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
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
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
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

var screenshot = flag.Bool("screenshot", false, "write docs/ui.png, the picture in the README")

// startUI starts leasefence ui. It returns the page's address, too.
func startUI(t *testing.T, endpoints string, args ...string) (p *running, page string) {
	t.Helper()
	p = start(t, endpoints, append([]string{"ui", "--listen", "127.0.0.1:0", "--every", "100ms", "--command-timeout", "10s"}, args...)...)
	p.stdout.await(t, "\n")
	page, _, _ = strings.Cut(p.stdout.String(), "\n")
	return p, page
}

// of is the page's address with a name chosen.
func of(page, name string) string { return page + "#" + url.Values{"name": {name}}.Encode() }

// The list shows the first of many names, and a search finds any.
func TestUI_listsManyNames(t *testing.T) {
	t.Parallel()
	_, client := etcd(t)
	// On a busy machine, with the race detector, a list of so many takes seconds, and ui pauses for ten times as long.
	_, page := startUI(t, client.Endpoints()[0], "--every", "1s", "--command-timeout", "20s")
	granted, err := client.Grant(rig.Bounded(t), 3600)
	require.NoError(t, err)
	const names = 5_000
	rig.PutMany(t, client, names, func(n int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("jobs/%05d/%s-a", n, hex(granted.ID)), "", clientv3.WithLease(granted.ID))
	})
	_, err = client.Put(rig.Bounded(t), "jobs/01124/"+hex(granted.ID)+"-z", "", clientv3.WithLease(granted.ID)) // a waiter
	require.NoError(t, err)
	p := open(t, page)
	p.await(t, `document.getElementById("count").textContent === "The first 200 of 5,000 names: narrow the prefix"`)
	require.Equal(t, 200, eval[int](t, p, `document.getElementById("list").rows.length`))

	p.run(t, chromedp.SendKeys("#prefix", "jobs/0112"))
	p.has(t, "#count", "10 of 5,000 names")
	var want [][]string
	for q, err := range lease.List(rig.Bounded(t), client, "jobs/0112") {
		require.NoError(t, err)
		want = append(want, []string{q.Name, fmt.Sprint(q.Holders[0].Revision), fmt.Sprint(len(q.Holders)), fmt.Sprint(len(q.Waiters))})
	}
	p.await(t, listShown+" === "+quoted(t, quoted(t, want)))
	p.run(t, chromedp.Click("#contended"))
	p.await(t, listShown+" === "+quoted(t, quoted(t, want[4:5])))

	p.run(t, chromedp.Click("#list a"))
	p.showsTheSame(t, client, "jobs/01124")
	p.run(t, chromedp.Evaluate[chromedp.Void](`$("prefix").focus(); $("prefix").value = ""`), chromedp.SendKeys("#prefix", "jobs/\r")) // a prefix, not a name
	p.await(t, `asked.prefix === "jobs/"`)
	require.Equal(t, "jobs/01124 – leasefence", eval[string](t, p, `document.title`))
	p.run(t, chromedp.Click("#contended"), chromedp.SendKeys("#prefix", "01124\r")) // a whole name
	p.await(t, `document.title === "jobs/01124 – leasefence"`)
	for n := range names / 1000 { // all in one request may take etcd longer than its timeout
		_, err = client.Delete(rig.Bounded(t), fmt.Sprintf("jobs/%02d", n), clientv3.WithPrefix())
		require.NoError(t, err)
	}
	p.has(t, "#count", "No locks with the prefix “jobs/01124”")
	p.showsTheSame(t, client, "jobs/01124")
}

// listShown is an expression for the rows of the list on the page.
const listShown = `JSON.stringify([...document.getElementById("list").rows].map((row) => [...row.cells].map((cell) => cell.textContent)))`

// The page shows names and owners as text, whatever they contain.
func TestUI_showsAnyName(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	_, page := startUI(t, addr)
	p := open(t, page)
	for _, name := range []string{
		`a/<script>window.hit = 1</script>`, `"><img src=x onerror="window.hit = 1">`, `' onmouseover='window.hit = 1`, `a%2f..%2f%00/%`, "../../etc",
		"javascript:window.hit=1", "日本/ünïcode 🔒", "__proto__", "a&name=b#c=d?e+f", `\u{41}`, "hidden\u202eeman\u2066\t\u00a0", "constructor",
	} {
		contend(t, client, 3600, name+"/", "-a", name)
		p.has(t, "#list", visible(name))
		p.run(t, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`[...document.querySelectorAll("#list a")].find((a) => a.textContent === %s).click()`, quoted(t, visible(name)))))
		p.await(t, `document.getElementById("name").textContent === `+quoted(t, visible(name)))
		p.showsTheSame(t, client, name)
		p.run(t, chromedp.Reload()) // the address has the name
		p.showsTheSame(t, client, name)
		p.has(t, "#log", visible(name))
	}
	require.Equal(t, "undefined 1 0", eval[string](t, p, `[typeof hit, document.scripts.length, document.images.length].join(" ")`))
	require.Contains(t, eval[string](t, p, `(() => { try { document.body.innerHTML = "<b>"; } catch (e) { return String(e); } })()`), "TrustedHTML")
}

// hidden matches invisible characters, and those that turn the direction of text.
var hidden = regexp.MustCompile(`[^\p{L}\p{M}\p{N}\p{P}\p{S} ]`)

// visible is a text as the page shows it.
func visible(text string) string {
	return hidden.ReplaceAllStringFunc(text, func(s string) string {
		return fmt.Sprintf(`\u{%x}`, []rune(s)[0])
	})
}

// The timeline shows how each hold ended, and what the audit trail says about it.
func TestUI_showsATimeline(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	trail := filepath.Join(t.TempDir(), "trail.json")
	require.NoError(t, os.WriteFile(trail, nil, 0o600))
	_, page := startUI(t, addr, "--audit", trail, "--write")
	stage(t, client)
	reader := rig.NewSession(t, client, lease.Options{Owner: "report@host-c/2210"})
	for _, name := range []string{"reports/daily", "reports/monthly"} {
		_, err := reader.RLock(rig.Bounded(t), name)
		require.NoError(t, err)
	}
	const name = "accounts/closing"
	p := open(t, strings.Replace(page, "#", of("", name)+"&", 1))
	p.has(t, "#holders", "")
	p.await(t, `document.getElementById("log").rows.length === 0 && document.body.dataset.state === "live"`)

	a, b := rig.NewSession(t, client, lease.Options{Owner: "ledger@host-a/1188"}), rig.NewSession(t, client, lease.Options{Owner: "ledger@host-b/1204"})
	first := rig.MustLock(t, a, name)
	p.has(t, "#log", "holds")
	require.NoError(t, first.Unlock(rig.Bounded(t)))
	p.has(t, "#log", "released")

	lost := contend(t, client, 15, name+"/", "-a", "ledger@host-c/977").rev // ui sees its end in time, whenever it reads the remaining time
	next := rig.Wait(t, b, name)
	p.has(t, "#log", "lease expired")
	rig.Await(t, next, "b never got the lock")
	p.showsTheSame(t, client, name)
	q, err := lease.Inspect(rig.Bounded(t), client, name)
	require.NoError(t, err)

	stamp := func(ago time.Duration) string { return time.Now().Add(-ago).UTC().Format(time.DateTime) }
	refused := fmt.Sprintf(`{"id":1,"key":"ledger","token":"%d","highest":"%d","holder":"ledger@host-c/977","refused_at":%q}`,
		lost, q.Holders[0].Revision, stamp(0))
	rows := fmt.Sprintf(`[{"key":"ledger","token":%d,"holder":"ledger@host-c/977","ttl_ms":5000,"granted_at":%q,"released_at":%q,"release_cause":"superseded"}]
%s
{"key":"elsewhere","token":"999999","granted_at":"2026-01-01T00:00:00+00:00"}`,
		lost, stamp(5*time.Second), stamp(time.Second), refused)
	require.NoError(t, os.WriteFile(trail, []byte(rows), 0o600))
	p.has(t, "#log", "lease expired; ledger: superseded")
	p.has(t, "#log .refused", fmt.Sprintf("refused by ledger, which had seen %d", q.Holders[0].Revision))
	require.NotContains(t, eval[string](t, p, `document.body.textContent`), "elsewhere")
	if *screenshot {
		another := rig.NewSession(t, client, lease.Options{Owner: "ledger@host-a/1301"})
		go func() { _, _ = another.Lock(t.Context(), name) }()
		p.has(t, "#waiters", "ledger@host-a/1301")
		p.await(t, `document.querySelector("#waiters .number").textContent.endsWith(" s")`)
		p.run(t, chromedp.EmulateViewport(1280, 600), chromedp.Evaluate[chromedp.Void](`document.documentElement.style.colorScheme = "light"; setup.etcd = ["127.0.0.1:2379"]; draw()`))
		png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("../../docs/ui.png", png, 0o600))
	}
	require.NoError(t, os.WriteFile(trail, []byte(rows+refused), 0o600)) // a row may be there twice, as after two exports
	p.await(t, `document.querySelectorAll("#log .refused").length === 2`)
	require.Equal(t, "2 2 2", eval[string](t, p, `[1, 2, 3].map(() => { draw(); return document.querySelectorAll("#log .refused").length; }).join(" ")`))
	// Before the first state of a name the page shows no timeline.
	p.await(t, `(take({ now: Date.now(), name: { ...one, known: false } }), draw(), document.getElementById("detail").hidden)`)
	require.NoError(t, os.WriteFile(trail, []byte(`{"key":`), 0o600))
	p.has(t, "#trailerror", "The audit trail: ")
	require.NoError(t, os.WriteFile(trail, nil, 0o600))
	p.await(t, `document.getElementById("trailerror").hidden`)
}

// The page fits a phone.
func TestUI_fits(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	stage(t, client)
	_, page := startUI(t, addr)
	p := open(t, page)
	p.run(t, chromedp.EmulateViewport(390, 800))
	p.has(t, "#list", "jobs/nightly")
	seen := func() string {
		return eval[string](t, p, `["names", "one"].map((id) => document.getElementById(id).checkVisibility()).concat(document.documentElement.scrollWidth).join(" ")`)
	}
	require.Equal(t, "true false 390", seen())
	p.run(t, chromedp.Focus("#list a"), chromedp.KeyEvent("\r"))
	p.has(t, "#log", "holds")
	require.Equal(t, "false true 390", seen())
	p.run(t, chromedp.Click(".back a"))
	p.await(t, `!document.body.classList.contains("chosen")`)
	require.Equal(t, "true false 390", seen())
}

// showsTheSame waits until the page shows what Inspect says.
func (p *tab) showsTheSame(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	var want string
	for began := time.Now(); time.Since(began) < patience; {
		q, err := lease.Inspect(rig.Bounded(t), client, name)
		require.NoError(t, err)
		want = quoted(t, rowsOf(q))
		// A lease may have ended since Inspect looked.
		if p.comes(t, queueShown+" === "+quoted(t, want)+` && document.body.dataset.state === "live"`, time.Second) {
			return
		}
	}
	require.JSONEq(t, want, eval[string](t, p, queueShown))
	require.Fail(t, "the page is not live")
}

// The page shows what Inspect says after each of many changes: also after an endpoint was lost, after all endpoints
// were lost, and after etcd has compacted the changes of that time.
func TestUI_showsWhatInspectSays(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	first, second := faults.NewProxy(t, srv.Endpoint()), faults.NewProxy(t, srv.Endpoint())
	_, page := startUI(t, first.Addr()+","+second.Addr())
	const name = "jobs/nightly"
	p := open(t, of(page, name))
	chance := rand.New(rand.NewPCG(1, 2))
	var queue []contender
	change := func() {
		if n := len(queue); n == 5 || chance.IntN(6) < n {
			i := chance.IntN(n)
			queue[i].leave(t, client, chance.IntN(2) == 0)
			queue = slices.Delete(queue, i, i+1)
			return
		}
		form := [...][2]string{{"/", "-a"}, {"/r", "-a"}, {"/~slot/1/", "-of3-a"}}[chance.IntN(3)] // a writer, a reader, the holder of a permit
		queue = append(queue, contend(t, client, 3600, name+form[0], form[1], fmt.Sprint("host/", chance.IntN(1000))))
	}
	for n := range 1000 {
		switch n {
		case 300:
			first.Refuse()
		case 400:
			first.Restore()
		case 500:
			second.Refuse()
		case 600:
			first.Refuse()
			p.await(t, `document.body.dataset.state === "stale" && document.getElementById("asof").textContent.startsWith("As of ")`)
			for range 20 {
				change()
			}
			resp, err := client.Get(rig.Bounded(t), "x")
			require.NoError(t, err)
			_, err = client.Compact(rig.Bounded(t), resp.Header.Revision)
			require.NoError(t, err)
			second.Restore()
		case 700, 800:
			contend(t, client, 2, name+"/", "", "") // a key as etcd's own packages write it, which expires
		}
		change()
		p.showsTheSame(t, client, name)
	}
	for _, one := range queue {
		one.leave(t, client, true)
	}
	p.showsTheSame(t, client, name)
	p.has(t, "#log", "etcd did not answer: holds may be missing")
}
