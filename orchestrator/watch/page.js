// Shows where the sweep is, once a second, and its report. All texts are set as text, never as markup.
"use strict";
(() => {
  const EVERY_MS = 1000;
  const SILENT_MS = 10000; // after which an answer counts as lost
  const LATE_MS = 5000; // after which a report that does not load itself again is replaced
  const at = (id) => document.getElementById(id);
  let report = "", heard = new Date();

  /** Sets a text only if it differs, so that a status is not announced again. */
  function say(id, text) {
    if (at(id).textContent !== text) at(id).textContent = text;
  }

  async function follow() {
    let now = null;
    try {
      const answer = await fetch("now", { signal: AbortSignal.timeout(SILENT_MS) });
      if (answer.ok) now = await answer.json();
      else lost(await answer.text());
    } catch {
      lost("Shardyard does not answer.");
    }
    if (now) show(now);
    if (!now?.last) setTimeout(follow, EVERY_MS);
  }

  function lost(why) {
    say("lost", `${why} What follows is the state of ${heard.toLocaleTimeString()}. Trying again …`);
    at("lost").hidden = false;
  }

  function show(now) {
    heard = new Date();
    at("lost").hidden = !now.last;
    if (now.last) say("lost", "This page keeps its last state: its server has ended with the sweep.");
    document.title = `${Math.floor(100 * now.done)}% ${now.name} – Shardyard`;
    say("name", now.name);
    say("progress", now.progress);
    at("progress").dataset.state = now.state;
    at("done").value = now.done;
    say("now", now.now);
    say("written", now.written);
    if (now.log.length) showLog(now);  // until a run has lines, those of the one before stay
    else if (now.state !== "running") at("console").hidden = true;
    showReport(now.report);
    at("alone").hidden = !now.report || now.last;
  }

  function showLog({ log_of: of, log }) {
    const pre = at("log"), text = log.join("\n");
    at("console").hidden = false;
    at("console").querySelector("summary").textContent = `Last lines of ${of}`;
    if (pre.textContent === text) return;
    const follows = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
    pre.textContent = text;
    if (follows) pre.scrollTop = pre.scrollHeight;
  }

  /** A report that is open loads itself again, and so keeps its place and its filters. */
  function showReport(version) {
    if (!version || version === report) return;
    const frame = at("report");
    const late = setTimeout(() => { frame.src = "report.html"; }, report ? LATE_MS : 0);
    frame.addEventListener("load", () => clearTimeout(late), { once: true });
    if (report) frame.contentWindow.postMessage("reload", "*");
    frame.hidden = false;
    report = version;
  }

  follow();
})();
