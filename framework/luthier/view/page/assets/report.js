// The report of a study, put together.

const report = readData();
const [FIRST_ROWS, MORE_ROWS] = [100, 1000];

// ---- what the reader has chosen: kept in the history entry of the page, where it survives a reload --------------

const choices = {
  filter: "", states: [], sort: "number", isDown: false, numRows: FIRST_ROWS, objective: 0, isLog: false, pair: [], matrix: { name: null, isDown: false },
  isPaused: false, ...(history.state?.report === report.name ? history.state.choices : {}),
};
if (choices.objective >= report.metrics.length) choices.objective = 0;

/** Remember the choices and the place on the page. */
function keepChoices() {
  const focus = document.activeElement?.id === "search" ? [document.activeElement.selectionStart, document.activeElement.selectionEnd] : null;
  const scrolled = [...document.querySelectorAll(".scroller")].map((one) => [one.scrollLeft, one.scrollTop]);
  history.replaceState({ report: report.name, choices, focus, scrolled, place: [scrollX, scrollY] }, "");
}

/** Go back to the place that `keepChoices` remembered. */
function restorePlace(state) {
  if (state?.report !== report.name) return;
  for (const [i, one] of [...document.querySelectorAll(".scroller")].entries()) [one.scrollLeft, one.scrollTop] = state.scrolled[i] || [0, 0];
  if (state.focus) {
    const field = document.getElementById("search");
    field?.focus({ preventScroll: true });
    field?.setSelectionRange(...state.focus);
  }
  scrollTo(...state.place);
}

// ---- tiles -----------------------------------------------------------------------------------

function tile(name, value, note) {
  return el("div", { class: "panel tile" }, el("dt", { class: "muted" }, name), el("dd", null, value), note ? el("dd", { class: "muted note" }, note) : null);
}

function tiles() {
  const count = (state) => report.trials.filter((t) => t.state === state).length;
  const others = ["running", "waiting", "paused", "pruned", "infeasible", "failed"].map((state) => [count(state), state]).filter(([n]) => n).map(([n, state]) => `${n.toLocaleString("en")} ${state}`);
  const best = report.best.length === 1 ? report.trials[report.best[0]] : null;
  return el("dl", { class: "tiles" },
    best ? tile(`Best ${report.metrics[0]}`, formatNumber(best.values[0]), `trial ${best.number}`)
      : tile("Best", report.best.length ? plural(report.best.length, "trial") : "–", report.best.length ? "not dominated by another" : report.why_no_best),
    tile("Complete", count("complete").toLocaleString("en"), others.join(", ") || "nothing else"),
    tile("Driver time", secondsText(report.seconds), plural(report.slices.length, "device group")),
    tile("Device time", secondsText(report.device_seconds), "of all devices together"));
}

// ---- the table of trials -------------------------------------------------------------------

/** The columns: name, the value to sort by, and the cell. */
function tableColumns() {
  const words = (t) => (t.words + t.reason).toLowerCase();
  return [
    { id: "number", name: "Trial", isNumber: true, key: (t) => t.number },
    { id: "state", name: "State", key: (t) => t.state, cell: (t) => [el("span", { class: `state-name state-${t.state}` }, t.state), isBest(report, t) ? el("b", { class: "star", title: "best" }, " ★") : null] },
    ...report.metrics.map((name, i) => ({ id: `metric ${i}`, name, isNumber: true, isDown: report.directions[i] === "higher",
      // Pruned trials have the value of an early step, and come after those that are complete.
      key: (t) => (t.values && Number.isFinite(t.values[i]) ? t.values[i] : null), isLast: (t) => t.state !== "complete",
      cell: (t) => (t.values && t.values[i] !== undefined ? formatNumber(t.values[i]) : "") })),
    ...report.dimensions.map((one) => ({ id: `dimension ${one.name}`, name: axisName(one.name, 28), title: one.name, isNumber: one.scale !== "category", key: (t) => one.values[t.number],
      cell: (t) => { const value = one.values[t.number]; return value === null ? "" : one.scale === "category" ? short(one.labels[value], null) : significant(value, 4); } })),
    { id: "seconds", name: "Time", isNumber: true, key: (t) => t.seconds, cell: (t) => (t.seconds === null ? "" : secondsText(t.seconds)) },
    { id: "words", name: "Overrides", isWide: true, key: words, cell: (t) => [el("span", { class: "mono", title: t.words }, shortened(t.words)), t.reason ? el("span", { class: "reason" }, t.reason) : null] },
  ];
}

const columns = tableColumns();
if (!columns.some((column) => column.id === choices.sort)) choices.sort = "number";
const trialBody = el("tbody");
const trialCount = el("p", { class: "muted", role: "status", "aria-live": "polite" });
// Thousands of rows take seconds, so that they come in parts.
const more = el("button", { type: "button", onclick: () => { choices.numRows += MORE_ROWS; showTrials(); } });

function trialRow(trial) {
  const command = `luthier train ${report.study}/${trial.number}`;
  const [, ...rest] = columns;
  return el("tr", { "data-trial": trial.number, class: isBest(report, trial) ? "best" : null },
    el("th", { scope: "row", class: "number" }, el("a", { href: safeLink(trial.link) }, trial.number)),
    rest.map((column) => {
      const content = column.cell(trial);
      return el("td", { class: column.isWide ? "words" : column.isNumber ? "number" : null, "data-name": content === "" ? null : axisName(column.title || column.name, 24) }, content);
    }),
    el("td", { class: "no-print" }, el("button", { class: "bare copy-command", type: "button", title: command, "aria-label": `Copy the command that runs trial ${trial.number} again`,
      onclick: () => copyText(command, "Command copied") }, "Copy command")));
}

function matchingTrials() {
  const words = choices.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = report.trials.filter((t) => (!choices.states.length || choices.states.includes(t.state))
    && words.every((word) => `${t.number} ${t.state} ${t.words} ${t.reason}`.toLowerCase().includes(word)));
  const { key, isLast = () => false } = columns.find((column) => column.id === choices.sort);
  const sign = choices.isDown ? -1 : 1;
  const rows = found.map((trial) => ({ trial, key: key(trial), rank: key(trial) === null ? 2 : Number(isLast(trial)) }));
  rows.sort((a, b) => a.rank - b.rank || (a.key === b.key ? 0 : sign * (a.key < b.key ? -1 : 1)) || a.trial.number - b.trial.number);
  return rows.map((row) => row.trial);
}

function showTrials() {
  const found = matchingTrials();
  const shown = found.slice(0, choices.numRows);
  trialBody.replaceChildren(...shown.map(trialRow));
  more.hidden = shown.length === found.length;
  more.textContent = found.length <= choices.numRows + MORE_ROWS ? `Show all ${found.length.toLocaleString("en")}` : `Show ${MORE_ROWS.toLocaleString("en")} more`;
  fitTable();
  trialCount.textContent = found.length === report.trials.length ? plural(found.length, "trial") : `${found.length.toLocaleString("en")} of ${plural(report.trials.length, "trial")}`;
}

/** Show the table as cards where its columns have no room beside each other. */
function fitTable() {
  const place = trialBody.parentElement?.parentElement;
  if (!place?.clientWidth) return;
  trialBody.parentElement.classList.remove("cards");
  trialBody.parentElement.classList.toggle("cards", place.scrollWidth > place.clientWidth + 1);
}

function sortHead(column) {
  const order = () => (choices.sort !== column.id ? "none" : choices.isDown ? "descending" : "ascending");
  const head = el("th", { scope: "col", class: column.isNumber ? "number" : null, "aria-sort": order() },
    el("button", { class: "bare sort", type: "button", title: column.title || null, onclick: () => {
      choices.isDown = choices.sort === column.id ? !choices.isDown : Boolean(column.isDown);
      choices.sort = column.id;
      for (const other of head.parentElement.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order());
      showTrials();
    } }, column.name));
  return head;
}

function trialSection() {
  const states = [...new Set(report.trials.map((t) => t.state))];
  choices.states = choices.states.filter((state) => states.includes(state));
  const field = el("input", { type: "search", id: "search", placeholder: "Search trials", "aria-label": "Search trials", autocomplete: "off", value: choices.filter, oninput: () => { choices.filter = field.value; showTrials(); } });
  const chips = states.map((state) => {
    const button = el("button", { type: "button", class: "kind", "aria-pressed": String(choices.states.includes(state)), onclick: () => {
      const others = choices.states.filter((one) => one !== state);
      choices.states = others.length < choices.states.length ? others : [...others, state];
      button.setAttribute("aria-pressed", String(choices.states.includes(state)));
      showTrials();
    } }, state, " ", el("span", { class: "count" }, report.trials.filter((t) => t.state === state).length));
    return button;
  });
  return section("trials", "Trials", [
    el("div", { class: "chips no-print", role: "search" }, field, states.length > 1 ? el("div", { class: "chips", role: "group", "aria-label": "Only these states" }, chips) : null, el("span", { class: "grow" }), trialCount),
    el("div", { class: "panel long scroller", tabindex: "0", role: "region", "aria-label": "Trials" }, el("table", { class: "plain trials" },
      el("caption", { class: "visually-hidden" }, "All trials"),
      el("thead", null, el("tr", null, columns.map(sortHead), el("td", { class: "no-print" }))), trialBody)), more]);
}

function section(id, title, children, note, tools) {
  return el("section", { class: "section", id, "aria-labelledby": `${id}-title` },
    el("header", null, el("h2", { id: `${id}-title` }, title), note ? el("span", { class: "muted" }, note) : null, tools), children);
}

// ---- one trial is highlighted wherever it is shown ------------------------------------------------

let lit = [];

/** Highlight a trial wherever it is shown; none where the number is undefined. */
function light(number) {
  if (lit.length && lit[0].dataset.trial === String(number)) return;
  for (const node of lit) node.classList.remove("lit");
  lit = number === undefined ? [] : [...document.querySelectorAll(`[data-trial="${Number(number)}"]`)];
  for (const node of lit) {
    node.classList.add("lit");
    if (node.classList.contains("way")) node.parentElement.insertBefore(node, node.parentElement.querySelector(".axis"));
  }
}

/** Show a text under a drawing. */
function readOut(inside, text) {
  const readout = inside.closest("figure")?.querySelector(".readout");
  if (readout) readout.textContent = text;
}

document.addEventListener("pointerover", (event) => {
  if (event.target.closest(".chart svg")?.querySelector(".curve")) return;  // the nearest curve is lit instead
  const node = event.target.closest("[data-trial]");
  light(node?.dataset.trial);
  if (node?.closest("figure")) readOut(node, node.dataset.note || trialTitle(report, report.trials[Number(node.dataset.trial)]));
});

const help = helpDialog([["/", "search the trials"], ["l", "logarithmic scale of the objective"], ["t", "light or dark"], ["?", "this list"]]);
document.addEventListener("keydown", (event) => {
  if (!isForPage(event)) return undefined;
  const acts = { "/": () => document.getElementById("search")?.select(), l: () => document.getElementById("log")?.click(), t: () => document.querySelector("[data-role=theme]").click(), "?": () => help.showModal() };
  if (!acts[event.key]) return undefined;
  event.preventDefault();
  return acts[event.key]();
});
window.addEventListener("beforeprint", () => { choices.numRows = Infinity; showTrials(); });

// ---- the charts --------------------------------------------------------------------------------

const isComplete = report.trials.some((t) => t.state === "complete" && t.values);
const chartsPlace = el("div", { class: "charts" });

function showCharts() {
  const { objective } = choices;
  const several = report.metrics.length > 1;
  const has = withValue(report.trials, objective).length > 0;
  const dimensions = has ? rankedDimensions(report, objective) : [];
  const names = dimensions.map((one) => one.name);
  const pair = [0, 1].map((i) => (names.includes(choices.pair[i]) ? choices.pair[i] : names[i]));
  if (pair[0] === pair[1]) pair[1] = names.find((name) => name !== pair[0]);
  const setPair = (at, name) => {
    choices.pair = pair.map((one, i) => (i === at ? name : one === name ? pair[at] : one));
    showCharts();
  };
  drawn.length = 0;
  chartsPlace.replaceChildren(...[
    report.curves.rows.length ? curvesChart(report, choices) : null,
    isComplete ? report.metrics.map((_, i) => historyChart(report, i, choices)) : el("p", { class: "panel chart muted" }, "No trial is complete yet."),
    isComplete && several ? report.metrics.slice(1).map((_, i) => paretoChart(report, [0, i + 1])) : null,
    isComplete ? importanceChart(report, objective) : null,
    has ? distributionChart(report, objective, choices) : null,
    has && dimensions.length ? parallelChart(report, objective, choices) : null,
    dimensions.slice(0, 12).map((one) => sliceChart(report, one, objective, choices)),
    dimensions.length > 1 ? contourChart(report, dimensions, objective, choices, pair, setPair) : null,
    report.spans.length ? timelineChart(report) : null].flat(2).filter(Boolean));
  drawCharts(true);
}

function chartTools() {
  const log = el("button", { type: "button", id: "log", "aria-pressed": String(choices.isLog), onclick: () => {
    choices.isLog = !choices.isLog;
    log.setAttribute("aria-pressed", String(choices.isLog));
    showCharts();
  } }, "Log scale");
  const select = report.metrics.length > 1 ? el("label", { class: "choice" }, "Objective ", el("select", { onchange: (event) => { choices.objective = Number(event.target.value); showCharts(); } },
    report.metrics.map((name, i) => el("option", { value: i, selected: i === choices.objective }, name)))) : null;
  return el("span", { class: "choices no-print" }, select, log);
}

// ---- updates while the study runs ------------------------------------------------------------------

const { seconds: liveSeconds, written } = report.live || {};
const liveText = el("span", { class: "muted", role: "status" });

/** The driver writes the page again: it is read again, unless the reader is in the middle of something. */
function watch() {
  const button = el("button", { class: "bare", type: "button", "aria-pressed": String(choices.isPaused), onclick: () => {
    choices.isPaused = !choices.isPaused;
    button.setAttribute("aria-pressed", String(choices.isPaused));
  } }, "Pause updates");
  const loaded = Date.now();
  let touched = 0;
  for (const kind of ["keydown", "pointerdown", "wheel", "touchmove"]) addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  const at = new Date(written * 1000).toLocaleTimeString();
  liveText.textContent = `Updated at ${at}, every ${significant(liveSeconds, 2)} s while the study runs`;
  const timer = setInterval(() => {
    // A driver that was killed leaves a page that is never written again.
    if (Date.now() / 1000 - written > Math.max(60, 6 * liveSeconds)) {
      liveText.textContent = `Last updated at ${at}: the study seems to be stopped; reload the page to look again`;
      button.hidden = true;
      clearInterval(timer);
      return;
    }
    const isBusy = choices.isPaused || document.hidden || help.open || !getSelection().isCollapsed || document.querySelector("select:focus");
    if (isBusy || Date.now() - touched < 1500 || Date.now() - loaded < liveSeconds * 1000) return;
    keepChoices();
    location.reload();
  }, 1000);
  return el("p", { class: "live no-print" }, liveText, button);
}

// ---- the page ------------------------------------------------------------------------------

const hasMatrix = report.matrix.rows.length > 0;
const best = report.best.slice(0, 3).map((number) => report.trials[number]);
const before = history.state;
history.scrollRestoration = "manual";

showPage(
  pageHead("luthier sweep", report.name, [el("p", { class: "muted" }, report.headline), liveSeconds ? watch() : null],
    [el("button", { class: "bare", type: "button", "aria-label": "Keyboard", title: "Keyboard", onclick: () => help.showModal() }, el("kbd", null, "?"))]),
  report.notices.length ? el("div", { class: "verdicts" }, report.notices.map((notice) => el("p", { class: "verdict warn" }, notice))) : null,
  el("main", null,
    tiles(),
    best.length ? el("p", { class: "best-words" }, best.length === 1 ? "The best sets " : "On the front: ", best.map((t, i) => [i ? "; " : null, el("code", null, shortened(t.words))])) : null,
    report.trials.length ? section("charts", "Results", chartsPlace, null, isComplete || report.curves.rows.length ? chartTools() : null) : el("p", { class: "muted empty-study" }, "No trial has started yet."),
    hasMatrix ? section("matrix", "Varied settings", el("div", { class: "matrix-place" }, matrixTable(report.matrix, false, choices.matrix)),
      report.matrix.left_out ? `the best and the newest; ${plural(report.matrix.left_out, "trial")} left out` : null) : null,
    report.trials.length ? trialSection() : null));
showTrials();
showCharts();
new ResizeObserver(() => { drawCharts(false); fitTable(); }).observe(document.getElementById("page"));
restorePlace(before);
window.addEventListener("pagehide", keepChoices);
