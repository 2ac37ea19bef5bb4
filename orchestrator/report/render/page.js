// Makes the report interactive: figures, filters, sorting and terms. The page is complete
// without it. What it relies on is listed at the top of the page's body.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const create = (tag, properties) => Object.assign(document.createElement(tag), properties);

  // --- The view: what is hidden and selected. It is kept in the fragment, so that a view can be sent.

  const tools = document.getElementById("tools");
  const chips = tools ? all("button[data-series]", tools) : [];
  const selects = tools ? all("select[data-filter]", tools) : [];
  const nothing = () => Object.fromEntries(selects.map((select) => [select.dataset.filter, ""]));
  const view = { hide: new Set(), selected: nothing(), at: "" };

  /** Takes the view from the fragment, such as `nodes=4`. A fragment that is an id leaves the view as it is. */
  function readFragment() {
    const fragment = location.hash.slice(1);
    const id = new URLSearchParams(`id=${fragment}`).get("id");
    if (document.getElementById(id)) {
      view.at = id;
      return;
    }
    const given = new URLSearchParams(fragment);
    view.hide = new Set(given.getAll("hide").filter((name) => chips.some((chip) => chip.dataset.series === name)));
    view.at = given.get("at") ?? "";
    for (const select of selects) {
      const value = given.get(select.dataset.filter) ?? "";
      view.selected[select.dataset.filter] = [...select.options].some((option) => option.value === value) ? value : "";
    }
  }

  function writeFragment() {
    const kept = new URLSearchParams();
    for (const name of view.hide) kept.append("hide", name);
    for (const [name, value] of Object.entries(view.selected)) if (value) kept.set(name, value);
    if (view.at && [...kept].length) kept.set("at", view.at);
    const fragment = [...kept].length ? kept.toString() : encodeURIComponent(view.at);
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  }

  // Before any listener changes the page: lines of tables and sections of runs that filters apply to.
  const filtered = all("tr[data-status], details.run[data-status]");

  /** Whether the filters leave out a line. A pending run has a status only, and no strategy. */
  function isFiltered({ dataset }) {
    if (view.hide.has(dataset.series)) return true;
    return Object.entries(view.selected).some(([name, value]) =>
      value && !(name === "status" ? dataset.status.split(" ") : [dataset[name]]).includes(value));
  }

  function applyView() {
    for (const element of filtered) element.hidden = isFiltered(element);
    for (const chip of chips) chip.setAttribute("aria-pressed", String(!view.hide.has(chip.dataset.series)));
    for (const select of selects) select.value = view.selected[select.dataset.filter];
    for (const name of drawn.keys()) hideSeries(name);
    if (!tools) return;
    const runs = filtered.filter((element) => element.matches("details.run"));
    const shown = runs.filter((run) => !run.hidden).length;
    const active = view.hide.size > 0 || Object.values(view.selected).some(Boolean);
    tools.querySelector(".shown").textContent = active ? `${shown} of ${runs.length} runs` : "";
    tools.querySelector(".reset").hidden = !active;
  }

  function changeView() {
    writeFragment();
    applyView();
  }

  function setUpTools() {
    if (!tools) return;
    tools.hidden = false;
    for (const chip of chips) {
      chip.addEventListener("click", () => {
        const name = chip.dataset.series;
        if (!view.hide.delete(name)) view.hide.add(name);
        changeView();
      });
    }
    for (const select of selects) {
      select.addEventListener("change", () => {
        view.selected[select.dataset.filter] = select.value;
        changeView();
      });
    }
    tools.querySelector(".none").addEventListener("click", () => {
      view.hide = new Set(chips.map((chip) => chip.dataset.series));
      changeView();
    });
    tools.querySelector(".reset").addEventListener("click", () => {
      view.hide.clear();
      view.selected = nothing();
      changeView();
    });
  }

  /** Opens what the fragment names, and scrolls to it: browsers do not open a closed section. */
  function showTarget() {
    const target = view.at && document.getElementById(view.at);
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  }

  // --- Figures: the static SVG stays until its figure comes near the window.

  const drawn = new Map(); // name of a figure -> its Vega view
  const unpacked = unpack("figures").then(JSON.parse);
  let config, figures; // once they are unpacked
  const leastPanel = 64; // pixels
  const legendEntry = 130; // pixels
  const oneLine = 620; // pixels; legends of wider figures are in one line
  let embed;

  /** Vega, which stays packed until the first figure needs it. */
  function library() {
    embed ??= unpack("library").then((text) => {
      document.head.append(create("script", { textContent: text }));
      return window.vegaEmbed;
    });
    return embed;
  }

  function unpack(id) {
    const base64 = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  /** The views of a specification, at any depth. */
  function* views(spec) {
    yield spec;
    for (const list of ["layer", "hconcat", "concat"]) for (const inner of spec[list] ?? []) yield* views(inner);
    if (spec.spec) yield* views(spec.spec);
  }

  /** Channels of an axis. Those whose scale is null hold pixels. */
  const channels = (spec, axis) =>
    [...views(spec)].map((inner) => inner.encoding?.[axis])
      .filter((channel) => channel?.type === "quantitative" && channel.scale !== null);

  /** Makes an axis linear or logarithmic. The figure has the domain of each. */
  function setScale(spec, axis, type) {
    for (const channel of channels(spec, axis)) {
      channel.scale = { ...channel.scale, type, domain: spec.usermeta.domains[type] };
      if (type === "log") delete channel.scale.zero;
    }
  }

  /** Whether a figure takes the width of its place: a single view does. Others keep theirs, and their place scrolls. */
  const fits = (spec) => typeof spec.width === "number";

  /**
   * Lets the figure take the width of its place, and at least what its text needs. The same in Vega-Lite,
   * `width: "container"`, complains about figures whose height is a number of lines.
   */
  function fill({ width: _, signals = [], usermeta, ...rest }) {
    const update = "max(containerSize()[0], least)";
    const events = [{ signal: "least" }, { source: "window", type: "resize" }];
    const own = [{ name: "least", value: usermeta?.least ?? 0 }, { name: "width", init: update, on: [{ events, update }] }];
    return { ...rest, autosize: { type: "fit-x", contains: "padding" }, signals: [...own, ...signals] };
  }

  /** Widens a figure whose text does not fit, such as its legend. Its place scrolls then. */
  async function makeRoom(made, svg) {
    const { right, width } = svg.getBoundingClientRect();
    const excess = Math.max(...all("text", svg).map((text) => text.getBoundingClientRect().right)) - right;
    if (excess > 0) await made.signal("least", Math.ceil(width + excess)).runAsync();
  }

  /** The names of a figure's series that belong to hidden chips: `ddp · gloo` and `ddp · gloo · dirichlet`. */
  function hiddenSeries(spec) {
    const names = new Set();
    for (const records of Object.values(spec.datasets ?? {})) for (const record of records) names.add(record.series);
    const hidden = [...view.hide];
    return [...names].filter((name) => name && hidden.some((chip) => name === chip || name.startsWith(`${chip} · `)));
  }

  function hideSeries(name) {
    const { spec } = figures[name];
    if (spec.params?.some((param) => param.name === "hidden")) drawn.get(name).signal("hidden", hiddenSeries(spec)).runAsync();
  }

  /** A figure of several panels with fewer of them side by side, or narrower ones; null if it cannot be narrower. */
  function narrower(spec, width, available) {
    const { columns, hconcat, concat = spec.facet ? [spec.spec] : [] } = spec;
    const shrunk = (panel, by) => ({ ...panel, width: Math.max(leastPanel, Math.floor(panel.width - by)) });
    if (columns > 1) {
      return { ...spec, columns: Math.max(1, Math.min(columns - 1, Math.floor(columns * available / width))) };
    }
    if (hconcat) {
      const by = (width - available) / hconcat.length;
      const enough = hconcat.every((panel) => panel.width - by >= leastPanel);
      return enough ? { ...spec, hconcat: hconcat.map((panel) => shrunk(panel, by)) } : stacked(spec);
    }
    if (!concat.length || concat.some((panel) => panel.width <= leastPanel)) return null;
    const panels = concat.map((panel) => shrunk(panel, width - available));
    return spec.facet ? { ...spec, spec: panels[0] } : { ...spec, concat: panels };
  }

  /** Panels in one column, each with the labels that the first one shows for all. */
  function stacked({ hconcat, ...rest }) {
    const labelled = [...views(hconcat[0])].map((inner) => inner.encoding?.y?.axis).find((axis) => axis);
    const concat = structuredClone(hconcat);
    for (const { encoding } of concat.flatMap((panel) => [...views(panel)])) {
      if (labelled && encoding?.y?.axis === null) encoding.y.axis = labelled;
    }
    return { ...rest, concat, columns: 1 };
  }

  function configFor(available) {
    const columns = available < oneLine ? { columns: Math.max(2, Math.floor((available - legendEntry) / legendEntry)) } : {};
    return { ...config, aria: false, legend: { ...config.legend, ...columns } };
  }

  /** Draws a figure that its place is wide enough for, if it can be that narrow. */
  async function drawIn(target, spec, available) {
    const options = { renderer: "svg", actions: false, patch: fits(spec) ? fill : [] };
    for (;;) {
      const { view: made } = await (await library())(target, spec, options);
      const svg = target.querySelector("svg");
      if (fits(spec)) await makeRoom(made, svg);
      const { width } = svg.getBoundingClientRect();
      const next = fits(spec) || width <= available ? null : narrower(spec, width, available);
      if (!next) return { made, svg };
      made.finalize();
      spec = next;
    }
  }

  async function place(box, spec, label) {
    const available = box.clientWidth;
    const target = create("div", { className: "coming" }); // out of sight, since the static figure stays until then
    box.append(target);
    await unpacked;
    const { made, svg } = await drawIn(target, { ...spec, config: configFor(available) }, available);
    // The figure is one image with a label: Vega's own labels, of every mark, have gaps and take long to read.
    svg.setAttribute("aria-hidden", "true");
    target.setAttribute("role", "img");
    target.setAttribute("aria-label", label);
    target.classList.remove("coming");
    box.replaceChildren(target);
    if (box.scrollWidth > box.clientWidth && !box.hasAttribute("tabindex")) {
      Object.assign(box, { tabIndex: 0, role: "region", ariaLabel: label }); // lets the keyboard scroll it
    }
    return made;
  }

  async function drawFigure(figure) {
    const name = figure.dataset.figure;
    const { spec, log } = figures[name];
    const copy = structuredClone(spec);
    const button = figure.querySelector("button.scale");
    const type = button?.getAttribute("aria-pressed") === "true" ? "log" : "linear";
    if (button) setScale(copy, log, type);
    const box = figure.querySelector(".drawing");
    const label = box.querySelector("[role=img]").getAttribute("aria-label");
    drawn.get(name)?.finalize();
    drawn.set(name, await place(box, copy, label));
    hideSeries(name);
  }

  function addScaleButton(figure) {
    const { spec, log } = figures[figure.dataset.figure];
    if (!log) return;
    const button = create("button", { type: "button", className: "scale", textContent: "Log scale" });
    button.setAttribute("aria-pressed", String(channels(spec, log).some((channel) => channel.scale?.type === "log")));
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      drawFigure(figure);
    });
    figure.querySelector(".heading").append(button);
  }

  async function setUpFigures() {
    ({ config, figures } = await unpacked);
    const near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        drawFigure(target);
      }
    }, { rootMargin: "300px" });
    for (const figure of all("figure[data-figure]")) {
      if (!(figure.dataset.figure in figures)) continue;
      addScaleButton(figure);
      near.observe(figure);
    }
  }

  // --- Tables: sorting, and the columns that are not shown at first.

  function valueIn(row, column) {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1 || cell.textContent === "–") return null;
    return cell.dataset.value ? Number(cell.dataset.value) : cell.textContent;
  }

  function compare(left, right) {
    if (typeof left === "number" && typeof right === "number") return left - right;
    return String(left).localeCompare(String(right), "en", { numeric: true });
  }

  /** Sorts the lines; those without a value stay last. direction: 1 ascending, -1 descending, 0 as written. */
  function sort(table, written, column, direction) {
    const keyed = written.map((row) => ({ row, value: valueIn(row, column) }));
    const [known, unknown] = [keyed.filter(({ value }) => value !== null), keyed.filter(({ value }) => value === null)];
    known.sort((left, right) => direction * compare(left.value, right.value));
    table.tBodies[0].append(...(direction ? [...known, ...unknown] : keyed).map(({ row }) => row));
  }

  function setUpSorting(table) {
    const heads = [...table.tHead.rows[0].cells];
    const written = [...table.tBodies[0].rows];
    if (written.length < 2) return;
    heads.forEach((head, column) => {
      const term = head.querySelector("a.term");
      const button = create("button", { type: "button", className: "sort", textContent: head.textContent });
      if (term) {
        button.classList.add("term");
        button.dataset.note = term.dataset.note;
        button.setAttribute("aria-describedby", term.getAttribute("aria-describedby"));
      }
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        sort(table, written, column, { ascending: 1, descending: -1 }[next] ?? 0);
      });
      head.replaceChildren(button);
    });
  }

  function setUpColumns(table) {
    const heads = [...table.tHead.rows[0].cells];
    if (!heads.some((head) => head.classList.contains("more"))) return;
    const button = create("button", { type: "button", className: "all-columns" });
    const show = (open) => {
      table.classList.toggle("all", open);
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "Fewer columns" : `All ${heads.length} columns`;
      const shown = heads.filter((head) => open || !head.classList.contains("more")).length;
      for (const cell of all("td.cause", table)) cell.colSpan = Math.max(1, shown - cell.cellIndex);
    };
    button.addEventListener("click", () => show(!table.classList.contains("all")));
    table.closest(".wide").before(button);
    show(false);
  }

  // --- Terms: the definition under the pointer or at the focus.

  const tooltip = document.getElementById("tooltip");
  let leaving;
  let explained; // the term whose definition is shown

  function showTerm(term) {
    clearTimeout(leaving);
    explained = term;
    const definition = document.getElementById(term.getAttribute("aria-describedby"));
    tooltip.textContent = definition.textContent;
    tooltip.hidden = false;
    const place = term.getBoundingClientRect();
    const below = place.bottom + tooltip.offsetHeight + 8 < innerHeight;
    tooltip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - tooltip.offsetWidth - 8))}px`;
    tooltip.style.top = `${below ? place.bottom + 4 : Math.max(8, place.top - tooltip.offsetHeight - 4)}px`;
  }

  function hideTerm() {
    tooltip.hidden = true;
  }

  function setUpTerms() {
    const termAt = (event) => event.target.closest?.('[aria-describedby^="term-"]');
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => {
        const term = termAt(event);
        if (term) showTerm(term);
        else if (tooltip.contains(event.target)) clearTimeout(leaving);
      });
    }
    document.addEventListener("pointerout", (event) => {
      // Leaves time to move the pointer into the definition, to read or copy it.
      if (termAt(event) || tooltip.contains(event.target)) leaving = setTimeout(hideTerm, 150);
    });
    document.addEventListener("focusout", hideTerm);
    document.addEventListener("keydown", (event) => event.key === "Escape" && hideTerm());
    // Moving the focus may scroll: the definition of the term at the focus follows it.
    const follow = () => !tooltip.hidden && (explained === document.activeElement ? showTerm(explained) : hideTerm());
    document.addEventListener("scroll", follow, { passive: true, capture: true });
    document.addEventListener("click", (event) => {
      // A finger cannot hover: the first tap shows the definition instead of following the link.
      const term = termAt(event);
      if (term?.tagName !== "A" || event.pointerType !== "touch") return;
      event.preventDefault();
      showTerm(term);
    });
  }

  // --- Paper: captions and findings are open, as they were before on the screen.

  function setUpPrinting() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = all("details.reasons:not([open]), figcaption details:not([open]), .all-findings:not([open]), .verdict details:not([open]), .terms:not([open])");
      for (const details of opened) details.open = true;
    });
    addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
    });
  }

  setUpTools();
  for (const table of all("table[data-sortable]")) {
    setUpSorting(table);
    setUpColumns(table);
  }
  setUpTerms();
  setUpPrinting();
  readFragment();
  applyView();
  showTarget();
  setUpFigures();
  addEventListener("hashchange", () => {
    readFragment();
    writeFragment();
    applyView();
    showTarget();
  });
  // The page of a sweep in progress asks for this when the report has been written again.
  addEventListener("message", ({ source, data }) => { if (source === parent && data === "reload") location.reload(); });
})();
