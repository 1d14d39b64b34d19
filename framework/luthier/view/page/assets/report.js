// The report of a study, put together.

const report = readData();
const FIRST_ROWS = 100;
const table = { filter: "", states: new Set(), sort: null, isDown: false, isWhole: false };

function tile(name, value, note) {
  return el("div", { class: "panel tile" }, el("dt", { class: "muted" }, name), el("dd", null, value), note ? el("dd", { class: "muted note" }, note) : null);
}

function tiles() {
  const count = (state) => report.trials.filter((t) => t.state === state).length;
  const others = ["running", "waiting", "pruned", "infeasible", "failed"].map((state) => [count(state), state]).filter(([n]) => n).map(([n, state]) => `${n} ${state}`);
  const best = report.best.length === 1 ? report.trials[report.best[0]] : null;
  return el("dl", { class: "tiles" },
    best ? tile(`Best ${report.metrics[0]}`, formatNumber(best.values[0]), `trial ${best.number}`)
      : tile("Best", report.best.length ? plural(report.best.length, "trial") : "–", report.best.length ? "not dominated by another" : "no trial is complete"),
    tile("Complete", `${count("complete")}`, others.join(", ") || "nothing else"),
    tile("Driver time", secondsText(report.seconds), plural(report.slices.length, "slice")),
    tile("Device time", secondsText(report.device_seconds), "of all devices together"));
}

// ---- the table of trials -------------------------------------------------------------------

const trialBody = el("tbody");
const trialCount = el("p", { class: "muted", role: "status", "aria-live": "polite" });
const more = el("button", { type: "button", onclick: () => { table.isWhole = true; showTrials(); } }, "Show all");

function trialRow(trial) {
  const command = `luthier train ${report.study}/${trial.number}`;
  return el("tr", { "data-trial": trial.number, class: report.best.includes(trial.number) ? "best" : null },
    el("th", { scope: "row", class: "number" }, el("a", { href: safeLink(trial.link) }, trial.number)),
    el("td", null, el("span", { class: `state-name state-${trial.state}` }, trial.state), report.best.includes(trial.number) ? el("b", { class: "star", title: "best" }, " ★") : null),
    report.metrics.map((_, i) => el("td", { class: "number" }, trial.values && trial.values[i] !== undefined ? formatNumber(trial.values[i]) : "")),
    el("td", { class: "number" }, trial.seconds === null ? "" : secondsText(trial.seconds)),
    el("td", { class: "words" }, el("span", { class: "mono", title: trial.words }, shortened(trial.words)), trial.reason ? el("span", { class: "reason" }, trial.reason) : null),
    el("td", { class: "no-print" }, el("button", { class: "bare copy-command", type: "button", title: command, "aria-label": `Copy the command that runs trial ${trial.number} again`,
      onclick: () => copyText(command, "Command copied") }, "Copy command")));
}

function matchingTrials() {
  const words = table.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = report.trials.filter((t) => (!table.states.size || table.states.has(t.state))
    && words.every((word) => `${t.number} ${t.state} ${t.words} ${t.reason}`.toLowerCase().includes(word)));
  if (table.sort === null) return table.isDown ? found.reverse() : found;
  const key = (t) => (table.sort === "seconds" ? t.seconds : t.values ? t.values[table.sort] : null);
  const sign = table.isDown ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [key(a), key(b)].map((v) => (Number.isFinite(v) ? v : null));
    if (x === null || y === null) return (x === null) - (y === null) || a.number - b.number;
    return sign * (x - y) || a.number - b.number;
  });
}

function showTrials() {
  const found = matchingTrials();
  const shown = table.isWhole ? found : found.slice(0, FIRST_ROWS);
  trialBody.replaceChildren(...shown.map(trialRow));
  more.hidden = shown.length === found.length;
  more.textContent = `Show all ${found.length.toLocaleString("en")}`;
  trialCount.textContent = found.length === report.trials.length ? plural(found.length, "trial") : `${found.length.toLocaleString("en")} of ${plural(report.trials.length, "trial")}`;
}

function sortHead(name, key, isNumber) {
  const head = el("th", { scope: "col", class: isNumber ? "number" : null, "aria-sort": key === null ? "ascending" : "none" },
    el("button", { class: "bare sort", type: "button", onclick: () => {
      table.isDown = table.sort === key ? !table.isDown : typeof key === "number" && report.directions[key] === "higher";
      table.sort = key;
      for (const other of head.parentElement.children) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", table.isDown ? "descending" : "ascending");
      showTrials();
    } }, name));
  return head;
}

function trialSection() {
  const states = [...new Set(report.trials.map((t) => t.state))];
  const field = el("input", { type: "search", id: "search", placeholder: "Search trials", "aria-label": "Search trials", autocomplete: "off", oninput: () => { table.filter = field.value; showTrials(); } });
  const chips = states.map((state) => {
    const button = el("button", { type: "button", class: "kind", "aria-pressed": "false", onclick: () => {
      if (!table.states.delete(state)) table.states.add(state);
      button.setAttribute("aria-pressed", String(table.states.has(state)));
      showTrials();
    } }, state, " ", el("span", { class: "count" }, report.trials.filter((t) => t.state === state).length));
    return button;
  });
  return section("trials", "Trials", [
    el("div", { class: "chips no-print", role: "search" }, field, states.length > 1 ? el("div", { class: "chips", role: "group", "aria-label": "Only these states" }, chips) : null, el("span", { class: "grow" }), trialCount),
    el("div", { class: "panel long scroller", tabindex: "0", role: "region", "aria-label": "Trials" }, el("table", { class: "plain trials" },
      el("caption", { class: "visually-hidden" }, "All trials"),
      el("thead", null, el("tr", null, sortHead("Trial", null, true), el("th", { scope: "col" }, "State"), report.metrics.map((name, i) => sortHead(name, i, true)),
        sortHead("Time", "seconds", true), el("th", { scope: "col" }, "What it sets"), el("td", { class: "no-print" }))), trialBody)), more]);
}

function section(id, title, children, note) {
  return el("section", { class: "section", id, "aria-labelledby": `${id}-title` },
    el("header", null, el("h2", { id: `${id}-title` }, title), note ? el("span", { class: "muted" }, note) : null), children);
}

// ---- one trial is highlighted wherever it is shown ------------------------------------------------

let lit = [];
document.addEventListener("pointerover", (event) => {
  const number = event.target.closest("[data-trial]")?.dataset.trial;
  if (lit.length && lit[0].dataset.trial === number) return;
  for (const node of lit) node.classList.remove("lit");
  lit = number === undefined ? [] : [...document.querySelectorAll(`[data-trial="${Number(number)}"]`)];
  for (const node of lit) {
    node.classList.add("lit");
    if (node.classList.contains("way")) node.parentElement.insertBefore(node, node.parentElement.querySelector(".axis"));
  }
});

const help = helpDialog([["/", "search the trials"], ["t", "light or dark"], ["?", "this list"]]);
document.addEventListener("keydown", (event) => {
  if (!isForPage(event)) return undefined;
  const acts = { "/": () => document.getElementById("search")?.select(), t: () => document.querySelector("[data-role=theme]").click(), "?": () => help.showModal() };
  if (!acts[event.key]) return undefined;
  event.preventDefault();
  return acts[event.key]();
});
window.addEventListener("beforeprint", () => { table.isWhole = true; showTrials(); });

// ---- the page ------------------------------------------------------------------------------

const isComplete = report.trials.some((t) => t.state === "complete" && t.values);
const hasMatrix = report.matrix.rows.length > 0;
const best = report.best.slice(0, 3).map((number) => report.trials[number]);

showPage(
  pageHead("luthier sweep", report.name, el("p", { class: "muted" }, report.headline, report.driver ? `; driven by ${report.driver}` : ""),
    [el("button", { class: "bare", type: "button", "aria-label": "Keyboard", title: "Keyboard", onclick: () => help.showModal() }, el("kbd", null, "?"))]),
  report.notices.length ? el("div", { class: "verdicts" }, report.notices.map((notice) => el("p", { class: "verdict warn" }, notice))) : null,
  el("main", null,
    tiles(),
    best.length ? el("p", { class: "best-words" }, best.length === 1 ? "The best sets " : "On the front: ", best.map((t, i) => [i ? "; " : null, el("code", null, shortened(t.words))])) : null,
    report.trials.length ? section("charts", "Results", el("div", { class: "charts" },
      isComplete ? report.metrics.map((_, i) => historyChart(report, i)) : el("p", { class: "panel chart muted" }, "No trial is complete yet."),
      isComplete && report.metrics.length > 1 ? paretoChart(report) : null,
      importanceChart(report),
      isComplete && hasMatrix ? parallelChart(report) : null,
      report.spans.length ? timelineChart(report) : null)) : el("p", { class: "muted empty-study" }, "No trial has started yet."),
    hasMatrix ? section("matrix", "Varied settings", el("div", { class: "matrix-place" }, matrixTable(report.matrix)),
      report.matrix.left_out ? `the best and the newest; ${plural(report.matrix.left_out, "trial")} left out` : null) : null,
    report.trials.length ? trialSection() : null));
showTrials();
