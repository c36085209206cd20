"use strict";
const $ = (id) => document.getElementById(id);
const keep = (store, key, value) => { try { return value === undefined ? window[store].getItem(key) : window[store].setItem(key, value); } catch { return null; } };

// Invisible characters, and those that turn the direction of text, are shown as their code points. Names and other
// foreign text are set as textContent, never as HTML.
const visible = (s) => s.replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const show = (node, text) => { node.hidden = !text; put(node, text || ""); };

// The last messages, by part. Lost is when the server was heard last, 0 while it
// is connected; why is the reason of the break.
let setup, list, one, skew = 0, lost = Date.now(), heard = 0, why = "", stream;
let asked = {};

// The address says what to show. If it has the token, that is moved to the session's storage.
function address() {
	const hash = new URLSearchParams(location.hash.slice(1));
	if (hash.has("token")) {
		keep("sessionStorage", "token", hash.get("token"));
		hash.delete("token");
		history.replaceState(null, "", "#" + hash);
	}
	return { name: hash.get("name") || "", prefix: hash.get("prefix") || "", contended: hash.get("contended") || "" };
}
const link = (change) => {
	const hash = new URLSearchParams();
	for (const [key, value] of Object.entries({ ...asked, ...change })) if (value) hash.set(key, value);
	return "#" + hash;
};
// A token has only these characters, and fetch throws on some others.
const headers = () => ({ "X-Leasefence": "1", Authorization: "Bearer " + (keep("sessionStorage", "token") || "").replace(/[^!-~]/g, "") });

// look opens the stream for the address, again after each break. A hidden page has no stream: a browser opens at most
// six connections to a server.
async function look() {
	stream?.abort();
	const mine = stream = new AbortController();
	const before = asked;
	asked = address();
	if (asked.name !== before.name) one = undefined;
	if (asked.prefix !== before.prefix || asked.contended !== before.contended) list = undefined;
	draw();
	for (let wait = 0; !mine.signal.aborted && !document.hidden; wait = Math.min(2 * wait + 250, 5000)) {
		await new Promise((next) => setTimeout(next, wait));
		if (mine.signal.aborted) return;
		const attempt = new AbortController();
		const began = Date.now();
		const watchdog = setInterval(() => { if (Math.abs(Date.now() - Math.max(began, heard)) > 15000) attempt.abort(); }, 1000);
		const stop = () => attempt.abort();
		mine.signal.addEventListener("abort", stop);
		try {
			const resp = await fetch("api/stream?" + new URLSearchParams(asked), { headers: headers(), signal: attempt.signal, cache: "no-store" });
			if (resp.status === 401) { why = "the page needs its token"; login(mine); return; }
			if (!resp.ok) { why = visible((await resp.text()).trim()); continue; }
			let rest = "";
			const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader();
			for (;;) {
				const { value, done } = await reader.read();
				if (done) throw new Error("the server has closed the stream");
				const lines = (rest + value).split("\n");
				rest = lines.pop();
				for (const line of lines) take(JSON.parse(line));
				wait = 0;
				draw();
			}
		} catch {
			if (!mine.signal.aborted) why = "leasefence ui cannot be reached";
		} finally {
			if (!mine.signal.aborted) { lost ||= heard; draw(); }
			clearInterval(watchdog);
			mine.signal.removeEventListener("abort", stop);
			attempt.abort();
		}
	}
}

function take(m) {
	heard = Date.now();
	lost = 0;
	why = "";
	skew = m.now - heard;
	setup = m.setup || setup;
	list = m.list || list;
	one = m.name || one;
}

const two = (n) => String(n).padStart(2, "0");
const clock = (ms) => { const d = new Date(ms); return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`; };
const moment = (ms) => new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : new Date(ms).toLocaleDateString() + " " + clock(ms);
function span(ms) {
	const s = Math.max(0, Math.floor(ms / 1000));
	if (s < 60) return ms >= 0 && ms < 10000 ? (Math.max(0, ms) / 1000).toFixed(1) + " s" : s + " s";
	if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
	return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min` : `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}
const now = () => Date.now() + skew;
const count = (n) => n.toLocaleString("en");

// rows fills a table's body. It keeps the elements of rows that stay, so that selection and focus stay.
function rows(body, items, key, make, fill) {
	const old = new Map([...body.rows].map((row) => [row.dataset.key, row])), taken = new Set();
	items.forEach((item, i) => {
		let k = key(item);
		while (taken.has(k)) k += " again"; // a trail may have a row twice
		taken.add(k);
		let row = old.get(k);
		old.delete(k);
		if (!row) {
			row = document.createElement("tr");
			row.dataset.key = k;
			for (const kind of make) row.insertCell().className = kind;
		}
		if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
		fill(row, item);
	});
	for (const row of old.values()) row.remove();
}
const cells = (row, ...texts) => texts.forEach((text, i) => { if (text !== null) put(row.cells[i], text); });

function draw() {
	const stale = one?.error || (!asked.name && list?.error);
	const asOf = one?.error ? one.as_of : list?.as_of;
	document.body.dataset.state = lost ? (setup || why ? "offline" : "connecting") : stale ? "stale" : "live";
	document.body.classList.toggle("chosen", Boolean(asked.name));
	put($("status"), lost ? (setup ? `${why || "connecting"}: last update ${moment(lost + skew)}` : why || "connecting") : stale ? "not live, see below" : "live");
	if (setup) {
		put($("etcd"), (setup.prefix ? visible(setup.prefix) + "… at " : "") + setup.etcd.join(", "));
		put($("mode"), setup.write ? "may release" : "read only");
		$("mode").className = setup.write ? "badge write" : "badge";
	}
	if (document.activeElement !== $("prefix")) $("prefix").value = asked.prefix;
	$("contended").checked = Boolean(asked.contended);
	names();
	const chosen = one && one.name === asked.name && (one.known || one.error); // before that, the holders are unknown
	$("none").hidden = chosen;
	put($("none"), asked.name ? "…" : "Choose a name, or type one in full and press Enter.");
	$("detail").hidden = !chosen;
	$("detail").classList.toggle("unknown", !one?.known);
	document.title = asked.name ? visible(asked.name) + " – leasefence" : "leasefence";
	if (!chosen) return;
	put($("name"), visible(one.name));
	show($("asof"), one.error && (one.known ? `As of ${moment(asOf)}, ${span(now() - asOf)} ago: ` : "") + visible(one.error));
	contenders("holders", one.holders, one.holding);
	contenders("waiters", one.waiters, one.waiting);
	put($("holding"), one.holding > 1 ? count(one.holding) + more(one.holders, one.holding) : "");
	put($("waiting"), one.waiting > 1 ? count(one.waiting) + more(one.waiters, one.waiting) : "");
	show($("trailerror"), one.trail?.error && "The audit trail: " + visible(one.trail.error));
	timeline();
}
const more = (list, all) => all > list.length ? `, the first ${list.length} are shown` : "";

function names() {
	if (!list || !list.as_of) { put($("count"), visible(list?.error || "…")); rows($("list"), [], null, [], null); return; }
	const single = list.locks === 1;
	const what = asked.contended ? ` that ${single && list.match ? "has" : "have"} waiters` : "";
	let text = `${count(list.match)}${list.match === list.locks ? "" : " of " + count(list.locks)} name${single ? "" : "s"}${what}`;
	if (list.match > list.rows.length) text = `The first ${list.rows.length} of ${text}: narrow the prefix`;
	if (!list.match) text = `No locks${asked.prefix ? ` with the prefix “${visible(asked.prefix)}”` : ""}${what}`;
	if (list.error) text += `, as of ${moment(list.as_of)}: ${visible(list.error)}`;
	put($("count"), text);
	rows($("list"), list.rows, (r) => r.name, ["mono name", "mono token", "number", "number"], (row, r) => {
		let a = row.cells[0].firstChild;
		if (!a) a = row.cells[0].appendChild(document.createElement("a"));
		a.href = link({ name: r.name });
		put(a, visible(r.name));
		row.toggleAttribute("aria-current", r.name === asked.name);
		cells(row, null, r.token || "–", count(r.holders), count(r.waiters));
	});
}

function contenders(id, list) {
	const holds = id === "holders";
	rows($(id), list, (c) => c.key + " " + c.token, ["mono token", "", "", "number", "mono key", "number"].slice(0, holds ? 6 : 5), (row, c) => {
		cells(row, c.token, visible(c.owner), c.class, c.ttl_seconds === undefined ? "" : c.ttl_seconds + " s", visible(c.key.slice(one.name.length + 1)));
		row.title = "lease " + c.lease;
		if (!holds || !setup.write || row.cells[5].firstChild) return;
		const button = row.cells[5].appendChild(document.createElement("button"));
		button.type = "button";
		put(button, "Release …");
		button.onclick = () => ask(c);
	});
}

// timeline draws the holds, with what the audit trail says about them, and the trail's other rows, the newest first.
function timeline() {
	const end = now(), tenures = new Map(), all = [], { log, trail } = one;
	const refusals = [];
	for (const t of trail?.rows || []) if (t.highest) refusals.push(t); else tenures.set(t.token, [...(tenures.get(t.token) || []), t]);
	const causes = (list) => (list || []).map((t) => t.cause ? `${visible(t.resource)}: ${visible(t.cause)}` : "").filter(Boolean).join(", ");
	const bad = (list) => (list || []).some((t) => t.cause === "expired" || t.cause === "revoked");
	for (const s of log) {
		const of = tenures.get(s.token);
		tenures.delete(s.token);
		const how = s.gap ? "etcd did not answer: holds may be missing" : s.end ? s.how || "ended" : "holds";
		all.push({ key: "h" + s.id, begin: s.begin, end: s.end, token: s.token || "", owner: s.owner || "",
			how: [how, s.note, causes(of)].filter(Boolean).join("; "), kind: s.gap ? "gap" : s.lost || bad(of) ? "lost" : s.end ? "" : "now" });
	}
	for (const list of tenures.values()) for (const t of list)
		all.push({ key: `t${t.resource} ${t.token}`, begin: t.begin, end: t.end || -1, token: t.token, owner: t.holder,
			how: t.cause ? causes([t]) : `${visible(t.resource)}: no end recorded`, kind: bad([t]) ? "lost" : "" });
	for (const r of refusals)
		all.push({ key: `r${r.resource} ${r.token} ${r.begin}`, begin: r.begin, end: r.begin, token: r.token, owner: r.holder,
			how: `refused by ${visible(r.resource)}, which had seen ${r.highest}`, kind: "refused" });
	all.sort((a, b) => (b.begin || 0) - (a.begin || 0) || (a.key < b.key ? 1 : -1));
	all.splice(300);
	const first = Math.min(end - 10000, ...all.map((e) => e.begin || e.end || end));
	put($("since"), all.length ? "from " + moment(first) : "");
	rows($("log"), all, (e) => e.key, ["mono time", "bars", "number", "mono token", "", "end"], (row, e) => {
		const until = e.end > 0 ? e.end : e.end < 0 ? e.begin : end;
		row.className = e.kind;
		cells(row, e.begin ? moment(e.begin) : "before", null, e.kind === "refused" || e.end < 0 ? "" : (e.begin ? "" : "> ") + span(until - (e.begin || first)), e.token, visible(e.owner), e.how);
		let bar = row.cells[1].firstChild;
		if (!bar) {
			bar = row.cells[1].appendChild(document.createElement("span"));
			bar.className = "bar";
			bar.appendChild(document.createElement("i"));
		}
		const part = (ms) => 100 * (ms - first) / (end - first);
		bar.firstChild.style.left = Math.min(99, part(e.begin || first)) + "%";
		bar.firstChild.style.width = part(until) - part(e.begin || first) + "%";
	});
}

// ask opens the dialog that releases a holder: the one that was shown when the button was pressed, and no other. An
// outcome that arrives after the dialog was closed must not show in the next one.
let asking;
function ask(c) {
	const name = one.name;
	put($("who"), `${visible(name)}: token ${c.token}, ${visible(c.owner)}`);
	put($("totype"), visible(name));
	put($("outcome"), "");
	$("typed").value = "";
	$("go").disabled = false;
	$("release").showModal();
	$("typed").focus();
	asking?.abort();
	const mine = asking = new AbortController();
	$("go").onclick = async () => {
		const mode = document.querySelector("input[name=mode]:checked").value;
		const typed = $("typed").value === visible(name) ? name : $("typed").value;
		$("go").disabled = true;
		put($("outcome"), mode === "wait" ? "waiting …" : "…");
		try {
			const resp = await fetch("api/release", { method: "POST", headers: { ...headers(), "Content-Type": "application/json" },
				signal: mode === "wait" ? mine.signal : null, body: JSON.stringify({ name, typed, mode, token: c.token }) });
			const says = visible((await resp.text()).trim());
			if (mine.signal.aborted) return;
			put($("outcome"), resp.ok ? { ask: "It was asked, and releases the lock when its work has ended.", wait: "It no longer holds the lock.", now: "It no longer holds the lock; it may run on until it notices." }[mode] : says);
			$("go").disabled = resp.ok;
		} catch (e) {
			if (mine.signal.aborted) return;
			put($("outcome"), "No answer: the holder may have been released. " + e.message);
			$("go").disabled = false;
		}
	};
}
$("cancel").onclick = () => $("release").close();
$("release").onclose = () => { if (!$("release").open) asking.abort(); }; // the event comes late: the dialog may be open again
$("typed").onkeydown = (e) => { if (e.key === "Enter") { e.preventDefault(); $("go").click(); } };

function login(mine) {
	if (mine.signal.aborted) return;
	$("token").value = "";
	if (!$("login").open) $("login").showModal();
}
$("loginform").onsubmit = () => { keep("sessionStorage", "token", $("token").value.trim()); look(); };

let typing;
const search = () => { clearTimeout(typing); typing = setTimeout(() => { location.replace(link({ prefix: $("prefix").value, contended: $("contended").checked ? "1" : "" })); }, 150); };
$("prefix").oninput = $("contended").onchange = search;
$("search").onsubmit = (e) => {
	e.preventDefault();
	if ($("prefix").value && !$("prefix").value.endsWith("/")) { clearTimeout(typing); location.hash = link({ name: $("prefix").value, prefix: $("prefix").value }); }
};

const themes = ["auto", "light", "dark"];
function theme(next) {
	const is = themes.includes(next) ? next : "auto";
	document.documentElement.dataset.theme = is;
	put($("theme"), { auto: "◐ auto", light: "○ light", dark: "● dark" }[is]);
	$("theme").setAttribute("aria-label", `colours: ${is}; change`);
	keep("localStorage", "theme", is);
}
$("theme").onclick = () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]);
theme(keep("localStorage", "theme"));

addEventListener("hashchange", look);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); else { stream.abort(); lost ||= heard; } });
setInterval(() => { if (one && !document.hidden) draw(); }, 1000);
look();
