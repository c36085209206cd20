//go:build unix

package command_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Once the name is typed, the page releases the holder that it showed when the button was pressed, and nobody else. The
// outcome shows only in the dialog that asked for it. Closing the dialog ends the wait for a release.
func TestUI_releasesWhatWasNamed(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	served, page := startUI(t, addr, "--write")
	defer func() { t.Log(served.stderr.String()) }() // it has a line for each release
	stage(t, client)
	const name = "jobs/nightly"
	p := open(t, strings.Replace(page, "#", of("", name)+"&", 1))
	p.showsTheSame(t, client, name)
	p.has(t, "#mode", "may release")
	outcome := func(mode, typed, says string) {
		t.Helper()
		p.run(t, chromedp.Click("input[value="+mode+"]"), chromedp.Evaluate[chromedp.Void](`document.getElementById("typed").value = ""`), chromedp.SendKeys("#typed", typed), chromedp.Click("#go"))
		p.has(t, "#outcome", says)
	}
	p.run(t, chromedp.Click("#holders button"), chromedp.WaitVisible("#release"))
	require.Contains(t, eval[string](t, p, `document.getElementById("who").textContent`), "host-a/1")
	before := keys(t, client, "")
	outcome("now", "jobs/nightl", "that is not the name: nothing was released")
	require.Equal(t, before, keys(t, client, ""))
	outcome("now", name, "It no longer holds the lock; it may run on until it notices.")
	p.run(t, chromedp.Click("#cancel"))
	p.has(t, "#holders", "host-b/2")
	p.showsTheSame(t, client, name)
	p.await(t, `[...document.getElementById("log").rows].some((row) => /host-a.*deleted from a page/.test(row.textContent))`)

	// Somebody else gets the lock while the dialog is open.
	p.run(t, chromedp.Click("#holders button"), chromedp.WaitVisible("#release"))
	endHold(t, client, name, "revoked")
	held := rig.MustLock(t, rig.NewSession(t, client, lease.Options{Owner: "host-c/3"}), name)
	p.has(t, "#holders", "host-c/3")
	outcome("now", name, "not held with revision")
	p.showsTheSame(t, client, name)
	p.has(t, "#holders", "host-c/3")

	again := func() {
		t.Helper()
		p.run(t, chromedp.Click("#cancel"), chromedp.Click("#holders button"), chromedp.WaitVisible("#release"))
	}
	again()
	outcome("ask", name, "It was asked, and releases the lock when its work has ended.")
	p.has(t, "#log", "asked for the release from a page")

	again()
	outcome("wait", name, "waiting …")
	again()
	served.stderr.await(t, "canceled")
	require.Equal(t, "false ", eval[string](t, p, `document.getElementById("go").disabled + " " + document.getElementById("outcome").textContent`))
	p.run(t, chromedp.Evaluate[chromedp.Void](`document.getElementById("cancel").click(), document.querySelector("#holders button").click()`)) // at once
	outcome("wait", name, "waiting …")
	require.NoError(t, held.Unlock(rig.Bounded(t)))
	p.await(t, `/no longer holds|not held/.test(document.getElementById("outcome").textContent)`) // "not held" if Unlock was first
}

// Without the token the page shows nothing, until the token is typed. The address does not keep the token.
func TestUI_wantsAToken(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	stage(t, client)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("0123456789abcdef\n"), 0o600))
	_, page := startUI(t, addr, "--token-file", file)
	require.NotContains(t, page, "0123456789abcdef")
	p := open(t, page)
	p.run(t, chromedp.WaitVisible("#login"))
	require.NotContains(t, eval[string](t, p, `document.body.innerText`), "jobs/")
	for _, wrong := range []string{"0123456789abcdee\r", "“0123456789abcdee”\r"} { // a header may not have the characters of the last
		p.run(t, chromedp.SendKeys("#token", wrong))
		p.await(t, `document.getElementById("token").value === "" && document.getElementById("login").open`)
		p.has(t, "#status", "the page needs its token")
	}
	p.run(t, chromedp.SendKeys("#token", "0123456789abcdef\r"))
	p.has(t, "#list", "jobs/nightly")

	made, page := startUI(t, addr, "--write")
	p = open(t, page)
	p.has(t, "#list", "jobs/nightly")
	require.NotContains(t, eval[string](t, p, `location.href`), "token")
	require.Contains(t, made.stdout.String(), "#token=")
}

// A tab that becomes visible again shows the time of its last update until its server has answered. A page whose server
// has ended says so, and is live again when the server is back.
func TestUI_survivesItsServer(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	stage(t, client)
	served, page := startUI(t, addr)
	p := open(t, of(page, "jobs/nightly"))
	p.showsTheSame(t, client, "jobs/nightly")
	turn := func(hidden bool) string {
		return eval[string](t, p, fmt.Sprintf(`Object.defineProperty(document, "hidden", { value: %v, configurable: true });
			document.dispatchEvent(new Event("visibilitychange"));
			document.body.dataset.state + " " + document.getElementById("status").textContent`, hidden))
	}
	turn(true)
	served.signal(t, syscall.SIGSTOP)
	require.Contains(t, turn(false), "offline connecting: last update ")
	served.signal(t, syscall.SIGCONT)
	p.showsTheSame(t, client, "jobs/nightly")

	served.signal(t, syscall.SIGTERM)
	require.Equal(t, 128+int(syscall.SIGTERM), served.end(t))
	p.await(t, `document.body.dataset.state === "offline"`)
	p.has(t, "#status", "leasefence ui cannot be reached: last update ")
	startUI(t, addr, "--listen", strings.Trim(strings.TrimPrefix(page, "http:"), "/"))
	p.showsTheSame(t, client, "jobs/nightly")
}

// The page of a user with permission on a prefix shows that prefix, and errors for other names.
func TestUI_restrictedUser(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	contend(t, client, 3600, "jobs/nightly/", "", "host-a/1")
	addUser(t, client, "eve", clientv3.PermissionType(clientv3.PermRead))
	enableAuth(t, client)
	_, page := startUI(t, addr, "--user", "eve:secret")
	p := open(t, of(page, "accounts"))
	p.has(t, "#count", "permission denied: give a PREFIX that this user may read")
	p.has(t, "#asof", "permission denied")
	p.has(t, "#status", "not live, see below") // the name must not look free
	require.False(t, eval[bool](t, p, `document.getElementById("timeline").checkVisibility()`))
	p.run(t, chromedp.Navigate(of(page, "jobs/nightly")))
	p.has(t, "#holders", "host-a/1")
	_, page = startUI(t, addr, "--user", "eve:secret", "jobs/")
	p = open(t, page)
	p.has(t, "#list", "jobs/nightly")
	p.run(t, chromedp.Navigate(of(page, "accounts")))
	p.has(t, "#status", `the page shows names that begin with "jobs/"`)
}

// ui answers only its own page, only with the token, and only requests that the page may make.
func TestUI_refuses(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	token, _ := stage(t, client)
	before := keys(t, client, "")
	_, plain := startUI(t, addr)
	_, written := startUI(t, addr, "--write", "jobs/")
	_, all := startUI(t, addr, "--listen", "0.0.0.0:0")
	require.NotContains(t, plain, "token")
	order := func(name, typed, token string) string {
		return fmt.Sprintf(`{"name":%q,"typed":%q,"mode":"now","token":%q}`, name, typed, token)
	}
	nightly := order("jobs/nightly", "jobs/nightly", token)
	for name, tt := range map[string]struct {
		page   string
		method string
		path   string
		body   string
		header string
		code   int
	}{
		"the page":                  {plain, "GET", "", "", "", 200},
		"of a name for this host":   {plain, "GET", "", "", "Host: localhost:1", 200},
		"of a name from elsewhere":  {plain, "GET", "", "", "Host: evil.example", 403},
		"of this address' number":   {plain, "GET", "", "", "Host: 127.0.0.1.evil.example", 403},
		"a stream without a script": {plain, "GET", "api/stream", "", "X-Leasefence:", 403},
		"read only":                 {plain, "POST", "api/release", nightly, "", 403},
		"from another site":         {written, "POST", "api/release", nightly, "Sec-Fetch-Site: cross-site", 403},
		"from another origin":       {written, "POST", "api/release", nightly, "Origin: http://evil.example", 403},
		"without the token":         {written, "POST", "api/release", nightly, "Authorization:", 401},
		"with another token":        {written, "POST", "api/release", nightly, "Authorization: Bearer x", 401},
		"another name typed":        {written, "POST", "api/release", order("jobs/nightly", "jobs", token), "", 400},
		"no holder":                 {written, "POST", "api/release", order("jobs/nightly", "jobs/nightly", "0"), "", 400},
		"another holder":            {written, "POST", "api/release", order("jobs/nightly", "jobs/nightly", "99999"), "", 409},
		"another prefix":            {written, "POST", "api/release", order("x", "x", token), "", 400},
		"no order":                  {written, "POST", "api/release", "{", "", 400},
		"too much":                  {written, "POST", "api/release", strings.Repeat(" ", 1<<20), "", 400},
		"a look at no name":         {plain, "GET", "api/stream?name=jobs/", "", "", 503},
		"a look at another prefix":  {written, "GET", "api/stream?name=x", "", "", 503},
		"off this host, no token":   {all, "GET", "api/stream", "", "Authorization:", 401},
		"off this host, page":       {all, "GET", "", "", "Host: page.example", 200},
		"another method":            {written, "DELETE", "api/release", "", "", 405},
		"nothing there":             {plain, "GET", "ui/index.html", "", "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			at, secret, _ := strings.Cut(tt.page, "#token=")
			if tt.page == all {
				at = "http://127.0.0.1:" + strings.Trim(at[strings.LastIndexByte(at, ':')+1:], "/") + "/"
			}
			req, err := http.NewRequestWithContext(rig.Bounded(t), tt.method, at+tt.path, strings.NewReader(tt.body))
			require.NoError(t, err)
			req.Header.Set("X-Leasefence", "1")
			req.Header.Set("Authorization", "Bearer "+secret)
			switch key, value, _ := strings.Cut(tt.header, ":"); {
			case key == "Host":
				req.Host = strings.TrimSpace(value)
			case value == "":
				req.Header.Del(key)
			default:
				req.Header.Set(key, strings.TrimSpace(value))
			}
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, tt.code, resp.StatusCode)
			require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
		})
	}
	require.Equal(t, before, keys(t, client, ""))
}
