// What pages need beyond links, forms and htmx: clocks, copying, keys, and keeping one's place while rows
// arrive. Every page is complete without this file; nothing here talks to the server on its own but "copy".
(() => {
  "use strict";
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => root.querySelectorAll(selector);

  // --- Clocks. The server's clock counts: a laptop that is five minutes off still shows true durations.
  const serverNow = Date.parse($('meta[name="now"]')?.content ?? "");
  const offset = Number.isNaN(serverNow) ? 0 : serverNow - Date.now();
  const now = () => Date.now() + offset;

  // The same rules as views.Elapsed and views.Ago.
  const elapsed = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    const two = (n) => String(n).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  };
  const ago = (ms) => {
    const s = Math.floor(Math.abs(ms) / 1000);
    if (s < 60) return ms < -5000 ? "in a minute" : "just now";
    const [n, unit] = s < 3600 ? [Math.floor(s / 60), "min"] : s < 86400 ? [Math.floor(s / 3600), "h"] : [Math.floor(s / 86400), "d"];
    return ms < 0 ? `in ${n} ${unit}` : `${n} ${unit} ago`;
  };
  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const tick = () => {
    for (const n of all("[data-since]")) set(n, elapsed(now() - Date.parse(n.dataset.since)));
    for (const n of all("[data-until]")) set(n, elapsed(Date.parse(n.dataset.until) - now()));
  };
  const relate = () => { for (const n of all("time[data-ago]")) set(n, ago(now() - Date.parse(n.dateTime))); };
  const localise = (root) => {
    for (const n of all("time[data-clock]", root)) {
      const d = new Date(n.dateTime);
      set(n, d.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }));
      n.title = d.toLocaleString();
    }
  };
  setInterval(tick, 1000);
  setInterval(relate, 20000);

  // --- Announcing: one polite region, used for what a person did or waits for, never for streaming text.
  const say = (text) => { const n = $("#announce"); if (n) n.textContent = text; };

  // --- Copying. navigator.clipboard exists only on secure origins; a self-hosted http address needs the other way.
  const copy = async (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("copy refused");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-url]");
    if (!button) return;
    event.preventDefault();
    const label = button.dataset.label ??= button.textContent;
    try {
      let text = $(button.dataset.copy || "#-")?.textContent ?? "";
      if (button.dataset.copyUrl) {
        const answer = await fetch(button.dataset.copyUrl, { headers: { Accept: "application/json" } });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        text = await answer.text();
      }
      await copy(text);
      button.textContent = "Copied";
      say("Copied");
    } catch (error) {
      button.textContent = "Could not copy";
      say(`Could not copy: ${error.message}`);
    }
    setTimeout(() => { button.textContent = label; }, 2000);
  });

  // --- Forms: a second click never sends twice; adding and removing the rows of a list field.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method === "dialog" || event.target.hasAttribute("hx-post")) return;
    const button = event.submitter;
    if (button) setTimeout(() => { button.disabled = true; button.setAttribute("aria-busy", "true"); });
  });
  addEventListener("pageshow", () => { for (const b of all("button[aria-busy]")) { b.disabled = false; b.removeAttribute("aria-busy"); } });
  document.addEventListener("click", (event) => {
    const add = event.target.closest("[data-add]");
    if (add) {
      const list = $(add.dataset.add);
      list.append($("template", list).content.cloneNode(true));
      $("input", list.lastElementChild)?.focus();
    }
    const then = event.target.closest("[data-click]");
    if (then) setTimeout(() => $(then.dataset.click)?.click());
    const open = event.target.closest("[data-dialog]");
    if (open && $(open.dataset.dialog)?.showModal) { event.preventDefault(); $(open.dataset.dialog).showModal(); }
  });

  // --- Keys.
  const typing = (target) => target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  let went = -Infinity; // when "g" was pressed
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form) {
      event.preventDefault();
      event.target.form.requestSubmit();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.key === "Escape") {
      const stop = $("#interrupt-dialog");
      if (stop?.showModal && $("#interrupt")) { event.preventDefault(); stop.showModal(); }
      return;
    }
    if (typing(event.target)) return;
    let hit;
    if (event.timeStamp - went < 1000) hit = $(`[data-go="${CSS.escape(event.key)}"]`);
    else if (event.key === "/") hit = $("[data-search]") ?? $('[data-go="c"]');
    else if (event.key === "?") hit = $("[data-dialog='#keys']");
    else if (/^[a-z]$/.test(event.key)) hit = $(`[data-key="${event.key}"]`);
    went = event.key === "g" ? event.timeStamp : -Infinity;
    if (!hit) return;
    event.preventDefault();
    if (typing(hit)) { hit.focus(); hit.select?.(); } else hit.click();
  });

  // --- Keeping one's place. At the bottom one stays there; anywhere else nothing moves and a button counts.
  const items = $("#transcript");
  const jump = $("#jump");
  const tall = () => document.documentElement.scrollHeight;
  const toBottom = () => window.scrollTo(0, tall());
  let height = tall(); // of the page before the rows that come next: where its bottom was
  const atBottom = () => window.innerHeight + window.scrollY >= height - 32;
  let follow = true; // as of the last scroll; a resize moves the bottom without one
  let unseen = 0;
  const count = (n) => { unseen = n; if (jump) { jump.hidden = !n; set(jump, `${n} new ↓`); } };
  const settle = () => { height = tall(); follow = atBottom(); if (follow) count(0); };
  if (items) {
    const [, seq] = /^#e-(\d+)$/.exec(location.hash) ?? [];
    if (seq && !document.getElementById(`e-${seq}`) && !new URLSearchParams(location.search).has("at")) location.replace(`?at=${seq}${location.hash}`);
    if (!location.hash || location.hash === "#end") toBottom();
    settle();
    addEventListener("scroll", settle, { passive: true });
    addEventListener("toggle", settle, true); // opening a row is reading, not following
    addEventListener("resize", () => { if (follow) toBottom(); settle(); });
    jump?.addEventListener("click", () => { toBottom(); settle(); $("#prompt")?.focus({ preventScroll: true }); });
    let newest = items.lastElementChild;
    new MutationObserver(() => {
      let added = 0;
      for (let n = items.lastElementChild; n && n !== newest; n = n.previousElementSibling) added++;
      newest = items.lastElementChild;
      if (atBottom()) toBottom(); else if (added) count(unseen + added);
      settle();
    }).observe(items, { childList: true, subtree: true, characterData: true });
  }
  // Earlier rows come in above: what one reads stays where it is, also at the very top, where browsers do not anchor.
  let above = null;
  document.addEventListener("htmx:before:swap", (event) => {
    above = event.detail.ctx.sourceElement.closest("#earlier") ? { y: window.scrollY, height: document.documentElement.scrollHeight } : null;
  });
  document.addEventListener("htmx:after:swap", () => {
    if (above) window.scrollTo(0, above.y + document.documentElement.scrollHeight - above.height);
    above = null;
  });
  // Logs that grow keep their end in sight unless one scrolled up, and never hold more than a page can bear.
  const LINES = 2000;
  document.addEventListener("htmx:before:swap", (event) => {
    for (const task of event.detail.tasks ?? []) {
      const log = task.target?.closest?.("[data-tail]");
      if (log) log._end = log.scrollTop + log.clientHeight >= log.scrollHeight - 24;
    }
  });
  document.addEventListener("htmx:after:settle", (event) => {
    const log = event.target.closest?.("[data-tail]");
    if (log) {
      while (log.childNodes.length > LINES) log.firstChild.remove();
      if (log._end ?? true) log.scrollTop = log.scrollHeight;
    }
    localise(event.target);
    relate();
    tick();
  });
  for (const log of all("[data-tail]")) log.scrollTop = log.scrollHeight;

  // --- The stream. A beat comes at least every 15 s; without one for 40 s the connection is dead, whatever
  // the socket says. A first connection that fails is tried again here; later ones are the extension's.
  const stream = $("#stream");
  if (stream) {
    const SILENCE = 40000, AGAIN = 2000;
    let heard = Date.now(), connection = null, over = false, warn = 0;
    const state = (text) => { const n = $("#live"); if (n) set(n, text); };
    const lost = () => { warn ||= setTimeout(() => state("Reconnecting…"), 1500); };
    const found = () => {
      clearTimeout(warn); warn = 0; heard = Date.now(); state("");
      for (const n of all("[data-unreached]")) { n.textContent = ""; delete n.dataset.unreached; }
    };
    const retry = () => { if (!over && !connection) setTimeout(() => { if (!connection) window.htmx.trigger(stream, "reopen"); }, AGAIN); };
    stream.addEventListener("htmx:sse:after:connection", (e) => { connection = e.detail.connection; found(); });
    stream.addEventListener("htmx:sse:before:message", found);
    stream.addEventListener("htmx:sse:error", lost);
    stream.addEventListener("htmx:sse:close", (e) => { connection = null; over ||= e.detail.reason === "message"; if (!over) { lost(); retry(); } });
    stream.addEventListener("htmx:error", () => { lost(); retry(); });
    stream.addEventListener("htmx:response:error", () => { lost(); retry(); });
    setInterval(() => {
      if (connection && !document.hidden && Date.now() - heard > SILENCE) { heard = Date.now(); lost(); connection.reader?.cancel(); }
    }, 5000);
  }

  // --- Answers to what was sent in place. A refusal leaves what was typed where it is.
  document.addEventListener("htmx:finally:request", (event) => {
    const form = event.detail.ctx.sourceElement;
    const status = event.detail.ctx.response?.status;
    if (form.id === "composer") {
      if (status >= 200 && status < 300) { form.reset(); toBottom(); }
      $("#prompt").focus({ preventScroll: true });
    }
    if (status === undefined && form.dataset.unreachable) {
      const place = $(form.dataset.unreachable);
      if (place) { place.textContent = "The server did not answer. What you typed is still here; look above whether it was taken before you send it again."; place.dataset.unreached = ""; }
    }
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") $("details.pop[open]")?.removeAttribute("open"); });

  localise(document);
  tick();
})();
