// Shows the messages of the server (messages.py). All that they hold is set as text, never as markup.
"use strict";
(() => {
  const SILENT_MS = 15000; // after which the server counts as lost; it is never silent for longer than 6 s
  const MOST_LINES = 1000; // of a log
  const STATES = {
    starting: "Starting",
    running: "Running",
    ended: "The sweep has ended",
    stopped: "The sweep has stopped before its end; the same command resumes it",
  };
  const WIDTH = 270, HEIGHT = 160, LEFT = 40, RIGHT = 10, TOP = 8, BOTTOM = 22; // of a curve
  const base = location.pathname.replace(/\/*$/, "");
  const at = (id) => document.getElementById(id);
  const rows = new Map();
  let chosen = "", log = "", detail = null, source = null, silence = 0, head = null, over = false;

  function element(name, text = "", attributes = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function drawn(name, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  /** Sets a text only if it differs, so that a status is not announced again. */
  function say(id, text) {
    if (at(id).textContent !== text) at(id).textContent = text;
  }

  function connect() {
    source?.close();
    const query = new URLSearchParams();
    if (chosen) query.set("run", chosen);
    if (log) query.set("log", log);
    source = new EventSource(`${base}/messages?${query}`);
    source.addEventListener("message", (event) => { heard(); show(JSON.parse(event.data)); });
    source.addEventListener("alive", heard);
    source.addEventListener("trouble", (event) => lost(event.data));
    source.addEventListener("end", () => { over = true; source.close(); clearTimeout(silence); sayEnd(); });
    source.addEventListener("error", () => lost("No connection to shardyard"));
    heard(false);
  }

  function heard(answered = true) {
    if (answered) at("lost").hidden = true;
    clearTimeout(silence);
    silence = setTimeout(() => lost("No answer from shardyard"), SILENT_MS);
  }

  function lost(why) {
    if (over) return;
    if (at("lost").hidden) {
      say("lost", `${why} since ${new Date().toLocaleTimeString()}. What follows is the last known state. Trying again …`);
      at("lost").hidden = false;
    }
    // A browser gives up where the server refuses; it may be another one by now.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  }

  /** The server has ended in order: with the sweep, or because it was asked to. */
  function sayEnd() {
    const still = head?.state === "running" || head?.state === "starting";
    say("lost", still
      ? "This page is no longer served: the command that served it was ended. The sweep may go on."
      : "This page keeps the last state: its server has ended with the sweep.");
    at("lost").hidden = false;
    at("lost").classList.add("calm");
    for (const link of document.querySelectorAll("a[data-served]")) link.replaceWith(link.textContent);
    if (head?.report) say("report", `Report: ${head.file}`);
    at("whole").hidden = true;
    for (const button of document.querySelectorAll("button")) button.disabled = true;
  }

  function show(message) {
    if (message.runs) message.runs.forEach(showRow);
    if (message.order) arrange(message.order);
    if (message.head) showHead(message.head);
    if (message.detail) showDetail(message.detail);
    if (message.curves) showCurves(message.curves);
    if (message.logs) showLogs(message.logs);
    if (message.lines) showLines(message.lines);
  }

  function showHead(now) {
    const before = head;
    head = now;
    document.querySelector("h1").textContent = now.name;
    document.title = `${Math.floor(100 * now.done)}% ${now.name} – Shardyard`;
    say("state", now.doing ? `${STATES[now.state]}: ${now.doing}` : STATES[now.state]);
    at("state").dataset.state = now.state;
    say("counts", ["", ...now.counts].join(" · "));
    if (now.running !== before?.running) reveal(now.running);
    const ended = now.state === "ended" || now.state === "stopped";
    say("elapsed", ended ? `All runs together took ${now.elapsed}` : `${now.elapsed} since the start`);
    say("left", now.left ? `· ${now.left}` : "");
    at("done").value = now.done;
    at("failed").hidden = !now.failed;
    showDamage(now);
    const key = `${now.report} ${now.file}`;
    if (at("report").dataset.shown === key) return;
    at("report").dataset.shown = key;
    at("report").replaceChildren();
    if (now.report) {
      const link = element("a", "Report", { href: `${base}/report.html`, target: "_blank", rel: "noopener", "data-served": "" });
      at("report").append(link, ended ? ` in ${now.file}` : ` of the runs that had ended at ${now.report}`);
    } else {
      at("report").append(ended ? "There is no report." : "No report yet; the sweep writes it at its end at the latest.");
    }
  }

  function showDamage({ damage, more_damage: more }) {
    const lines = more ? [...damage, `and ${more} more`] : damage;
    document.querySelector("#damage ul").replaceChildren(...lines.map((line) => element("li", line)));
    at("damage").hidden = !lines.length;
  }

  function showRow(run) {
    let row = rows.get(run.key);
    if (!row) {
      row = element("tr", "", { "data-key": run.key });
      const name = element("th", "", { scope: "row" });
      const button = element("button", run.key, { type: "button", class: "choose" });
      button.addEventListener("click", () => choose(run.key));
      name.append(button, element("small", "", { class: "why" }));
      const state = element("td");
      state.append(element("span", "", { class: "badge" }));
      row.append(name, state, ...["Epoch", "Loss", "Accuracy", "Time"].map((label) => element("td", "", { "data-label": label })));
      rows.set(run.key, row);
    }
    row.dataset.state = run.state;
    row.querySelector(".badge").textContent = run.state;
    row.querySelector(".why").textContent = run.cause;
    [run.epoch, run.loss, run.accuracy, run.time].forEach((text, number) => { row.cells[number + 2].textContent = text; });
  }

  function arrange(order) {
    for (const [key, row] of rows) if (!order.includes(key)) { row.remove(); rows.delete(key); }
    document.querySelector("#runs tbody").replaceChildren(...order.map((key) => rows.get(key)));
    at("all-runs").hidden = !order.length;
  }

  /** Scrolls the list of runs, not the page. */
  function reveal(key) {
    const row = rows.get(key), list = at("list");
    if (row && list.scrollHeight > list.clientHeight) list.scrollTop = row.offsetTop - list.clientHeight / 2;
  }

  function choose(key) {
    chosen = key;
    log = "";
    connect();
    at("run").scrollIntoView({ block: "nearest" });
  }

  function showDetail(run) {
    if (run.key !== detail?.key) {
      at("log").replaceChildren();
      rows.get(detail?.key)?.removeAttribute("aria-current");
      rows.get(run.key)?.setAttribute("aria-current", "true");
    }
    detail = run;
    at("run").hidden = false;
    at("run").dataset.key = run.key;
    at("run").dataset.state = run.state;
    say("run-heading", run.key);
    say("run-state", run.state);
    const facts = [
      run.epoch && (run.epoch === "starting" ? run.epoch : `epoch ${run.epoch}`),
      run.loss && `loss ${run.loss}`,
      run.accuracy && `accuracy ${run.accuracy}`,
      run.time,
    ];
    say("run-facts", facts.filter(Boolean).join(" · "));
    say("cause", run.cause);
    at("cause").hidden = !run.cause;
    at("follow").hidden = run.follows || !head?.running || head.running === run.key;
    at("ranks").hidden = !run.ranks.length;
    document.querySelector("#ranks tbody").replaceChildren(...run.ranks.map(([name, ...cells]) => {
      const row = element("tr");
      row.append(element("th", name, { scope: "row" }), ...cells.map((text) => element("td", text)));
      return row;
    }));
    at("more-ranks").hidden = !run.more;
    say("more-ranks", `and ${run.more} more`);
  }

  function showCurves({ epochs, points }) {
    curve("accuracy", epochs, points.map(([epoch, , accuracy]) => [epoch, accuracy]), (value) => `${(100 * value).toFixed(1)}%`, (value) => `${Math.round(100 * value)}%`, [0, 1]);
    curve("loss", epochs, points.filter(([, loss]) => loss !== null).map(([epoch, loss]) => [epoch, loss]), (value) => value.toPrecision(3), (value) => String(Number(value.toPrecision(2))), null);
  }

  /** Round numbers from 0 to at least `most`. */
  function ticks(most) {
    const step = 10 ** Math.floor(Math.log10(most / 2 || 1));
    const size = [1, 2, 5, 10].map((each) => each * step).find((each) => most / each <= 4);
    return Array.from({ length: Math.ceil(most / size - 1e-9) + 1 }, (_, number) => number * size);
  }

  function curve(name, epochs, points, exact, rounded, range) {
    const figure = document.querySelector(`[data-curve="${name}"]`);
    const last = points.at(-1);
    figure.querySelector("b").textContent = last ? exact(last[1]) : "";
    const svg = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": last ? `${name} by epoch: ${points.map(([epoch, value]) => `${epoch}: ${exact(value)}`).slice(-20).join(", ")}` : `${name} by epoch: no epoch has finished`,
    });
    const most = Math.max(epochs, ...points.map(([epoch]) => epoch), 1);
    const levels = range ? [0, 0.25, 0.5, 0.75, 1] : ticks(last ? Math.max(...points.map(([, value]) => value), 1e-6) : 1);
    const x = (epoch) => LEFT + (most === 1 ? 0.5 : (epoch - 1) / (most - 1)) * (WIDTH - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.max(0, value) / levels.at(-1)) * (HEIGHT - TOP - BOTTOM);
    for (const level of levels) {
      svg.append(drawn("line", { class: level ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(level), y2: y(level) }));
      svg.append(drawn("text", { x: LEFT - 6, y: y(level) + 4, "text-anchor": "end" }, rounded(level)));
    }
    const every = most > 6 ? ticks(most)[1] : 1;
    const labelled = Array.from({ length: most }, (_, number) => number + 1).filter((epoch) => epoch === 1 || epoch % every === 0);
    for (const epoch of labelled) {
      svg.append(drawn("text", { x: x(epoch), y: HEIGHT - 6, "text-anchor": "middle" }, String(epoch)));
    }
    svg.append(drawn("polyline", { class: "line", points: points.map(([epoch, value]) => `${x(epoch)},${y(value)}`).join(" ") }));
    for (const [epoch, value] of points.length > 60 ? points.slice(-1) : points) {
      const dot = drawn("circle", { cx: x(epoch), cy: y(value), r: 3 });
      dot.append(drawn("title", {}, `epoch ${epoch}: ${exact(value)}`));
      svg.append(dot);
    }
    figure.querySelector(".plot").replaceChildren(svg);
  }

  function showLogs({ names, name, run }) {
    const focused = at("logs").contains(document.activeElement);
    at("logs").replaceChildren(...names.map((each) => {
      const button = element("button", each, { type: "button", "aria-pressed": String(each === name) });
      button.addEventListener("click", () => { chosen = run; log = each; connect(); });
      return button;
    }));
    if (focused) at("logs").querySelector("[aria-pressed=true]")?.focus();
    const file = name && name !== "events";
    at("whole").hidden = !file;
    if (file) at("whole").href = `${base}/${encodeURIComponent(run)}/${encodeURIComponent(name)}.log`;
  }

  function showLines({ new: lines, restarted }) {
    const pre = at("log");
    const follows = restarted || pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
    if (restarted) pre.replaceChildren();
    pre.append(...lines.map((line) => document.createTextNode(`${line}\n`)));
    while (pre.childNodes.length > MOST_LINES) pre.firstChild.remove();
    if (follows) pre.scrollTop = pre.scrollHeight;
  }

  at("follow").addEventListener("click", () => { chosen = ""; log = ""; connect(); });
  at("failed").addEventListener("click", (event) => { event.preventDefault(); if (head?.failed) choose(head.failed); });
  connect();
})();
