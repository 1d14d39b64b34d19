// The controls of the page of a diff, and its assembly.

const DIFF_KEYS = [
  ["j k", "next and previous change"],
  ["↑ ↓", "next and previous row"],
  ["← →", "close and open a part"],
  ["/", "search"],
  ["p", "filter by path"],
  ["u s", "unified, side by side"],
  ["e", "show everything, or the changes only"],
  ["c", "copy the selected change as an override"],
  ["t", "light or dark"],
  ["Esc", "clear the search and the filters"],
  ["?", "this list"],
];

const search = el("input", { type: "search", id: "search", placeholder: "Search names and values", "aria-label": "Search names and values",
  "aria-describedby": "count", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false", oninput: () => {
    state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    refresh();
  } });
const pathField = el("input", { type: "text", id: "path", placeholder: "Path, as optimizer.**", "aria-label": "Only paths like this",
  "aria-describedby": "count", list: "paths", autocomplete: "off", spellcheck: "false", oninput: () => {
    state.path = pathTest(pathField.value);
    refresh();
  } });
const pathList = el("datalist", { id: "paths" }, rows.filter((row) => row.opens && row.path && row.depth <= 2).slice(0, 200).map((row) => el("option", { value: row.path })));

function viewButton(view, text, key) {
  return el("button", { type: "button", "data-view": view, "aria-pressed": String(state.view === view), "aria-keyshortcuts": key, onclick: () => setView(view) }, text);
}
const views = el("div", { class: "segments", role: "group", "aria-label": "View" }, viewButton("split", "Side by side", "s"), viewButton("unified", "Unified", "u"));
const everything = el("button", { type: "button", "aria-pressed": "false", id: "everything", "aria-keyshortcuts": "e", onclick: () => {
  state.everything = !state.everything;
  state.opened.clear();
  everything.setAttribute("aria-pressed", String(state.everything));
  refresh();
} }, "Show everything");

function setView(view) {
  state.view = view;
  grid.classList.toggle("split", view === "split");
  grid.classList.toggle("unified", view === "unified");
  for (const button of views.children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  layOut();
  draw(true);
}

const present = Object.keys(KINDS).filter((kind) => changes.some((change) => change.kind === kind));
const kindButtons = present.map((kind) => {
  const many = changes.filter((change) => change.kind === kind).length;
  const button = el("button", { type: "button", class: "kind", "aria-pressed": "false", "data-kind": kind, title: KINDS[kind][1], onclick: () => {
    if (!state.kinds.delete(kind)) state.kinds.add(kind);
    button.setAttribute("aria-pressed", String(state.kinds.has(kind)));
    refresh();
  } }, KINDS[kind][0], " ", el("span", { class: "count" }, many));
  return button;
});

function clearFilters() {
  search.value = pathField.value = "";
  state.words = [];
  state.path = null;
  state.kinds.clear();
  for (const button of kindButtons) button.setAttribute("aria-pressed", "false");
}

// ---- copying all ---------------------------------------------------------------------------

const overrides = comparison.overrides || [];
const unsayable = comparison.unsayable || [];
const copyAll = el("button", { type: "button", id: "copy-overrides", disabled: !overrides.length, onclick: () =>
  copyText(overrides.map(shellQuote).join(" "), `${plural(overrides.length, "override")} copied`) }, "Copy overrides ", el("span", { class: "count" }, overrides.length));
const copyPatch = el("button", { type: "button", id: "copy-fiddler", disabled: !comparison.patch, onclick: () =>
  copyText(comparison.patch, "Fiddler copied") }, "Copy fiddler");
const withoutOverride = unsayable.length ? el("details", { class: "without-override" },
  el("summary", null, `${plural(unsayable.length, "change")} without an override`),
  el("ul", null, unsayable.map((one) => el("li", null, el("code", null, one.path), ` ${one.reason}`)))) : null;

// ---- the pointer and the keys --------------------------------------------------------------

body.addEventListener("click", (event) => {
  const line = event.target.closest("[data-position]");
  if (!line) return;
  const item = state.shown[Number(line.dataset.position)];
  if (!item.row) return openGap(item);
  if (event.target.closest(".twisty") && item.row.opens) return fold(item.row, !state.folded.has(item.row.index));
  return select(item.row.index, { scroll: false });
});

/** Give the tree the focus, for the arrow keys, without scrolling to its top. */
function focusTree() {
  grid.focus({ preventScroll: true });
}

function walkTree(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const row = state.active === null ? null : rows[state.active];
  const acts = {
    ArrowDown: () => moveBy(1), ArrowUp: () => moveBy(-1), Home: () => moveBy(-1, true), End: () => moveBy(1, true),
    ArrowRight: () => {
      const next = state.shown[positionOf(state.active) + 1];
      if (row && state.folded.has(row.index)) fold(row, false);
      else if (next && !next.row) openGap(next);
    },
    ArrowLeft: () => {
      if (row && row.opens && !state.folded.has(row.index)) fold(row, true);
      else if (row && row.parent >= 0) select(row.parent);
    },
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}
grid.addEventListener("keydown", walkTree);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.target.closest("dialog")) {
    clearFilters();
    refresh();
    return focusTree();
  }
  // Nothing has the focus: the keys of the tree are for the tree.
  if (event.target === document.body && event.key.startsWith("Arrow")) {
    walkTree(event);
    return focusTree();
  }
  if (event.key === "Enter" && event.target === search) return step(1);
  if (!isForPage(event)) return undefined;
  const acts = {
    j: () => step(1), k: () => step(-1), "/": () => search.select(), p: () => pathField.select(), u: () => setView("unified"), s: () => setView("split"),
    e: () => everything.click(), c: copyActive, t: () => document.querySelector("[data-role=theme]").click(), "?": () => help.showModal(),
  };
  if (!acts[event.key]) return undefined;
  event.preventDefault();
  return acts[event.key]();
});

let isWaiting = false;
function drawSoon() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; draw(false); });
}
window.addEventListener("scroll", drawSoon, { passive: true });
window.addEventListener("resize", () => { layOut(); draw(true); });
window.addEventListener("beforeprint", drawWhole);
window.addEventListener("afterprint", () => { delete body.dataset.whole; draw(true); });

function followLink() {
  if (location.hash.length < 2) return false;
  let path = location.hash.slice(1);
  try {
    path = decodeURIComponent(path);
  } catch { /* a lone % does not start an escape, and is taken literally */ }
  const row = rowOfPath.get(path);
  if (!row) announce(`There is no setting ${path}`);
  else select(row.index, { link: false });
  return Boolean(row);
}
window.addEventListener("hashchange", followLink);

// ---- the page ------------------------------------------------------------------------------

function sideCard(side, number) {
  return el("div", { class: `panel side-card side-${number}-card` },
    el("b", { class: `letter side-${number}` }, SIDES[number]),
    el("div", null, el("p", { class: "title mono" }, side.title), side.detail ? el("p", { class: "muted" }, side.detail) : null),
    side.fingerprint ? el("code", { class: "muted fingerprint", title: `Fingerprint ${side.fingerprint}` }, side.fingerprint.slice(0, 12)) : null);
}

const help = helpDialog(DIFF_KEYS);
// A dialog gives the focus back to the element that had it. Where none had, it keeps the focus for a
// moment, and then none has it.
help.addEventListener("close", () => {
  if (document.activeElement === document.body || help.contains(document.activeElement)) focusTree();
});
const idle = changes.filter((change) => !change.effective).length;
const summary = !changes.length ? "Nothing differs"
  : `${plural(changes.length, "change")}${idle ? `, ${idle} of them without effect on the built objects` : ""}`;
const jumps = [["effects", "Effects"], ["curves", "Curves"]].filter(([id]) => effects?.[id === "effects" ? "quantities" : "charts"]?.length)
  .map(([id, text]) => el("button", { class: "bare", type: "button", onclick: () => document.getElementById(id).scrollIntoView() }, text));

const toolbar = el("div", { class: "toolbar no-print", role: "search" },
  el("div", { class: "chips" }, search, pathField, pathList, views, everything, el("span", { class: "grow" }), copyAll, copyPatch),
  el("div", { class: "chips second" }, el("div", { class: "chips", role: "group", "aria-label": "Only these kinds" }, kindButtons), el("span", { class: "grow" }), count));
// The head of the tree sticks below the toolbar, whose controls may take several lines.
new ResizeObserver(() => {
  document.documentElement.style.setProperty("--toolbar", `${toolbar.getBoundingClientRect().height}px`);
}).observe(toolbar);

showPage(
  el("a", { class: "skip", href: "#changes", onclick: (event) => { event.preventDefault(); grid.focus(); } }, "To the changes"),
  pageHead("luthier diff", summary, null, [...jumps, el("button", { class: "bare", type: "button", "aria-label": "Keyboard", title: "Keyboard", onclick: () => help.showModal() }, el("kbd", null, "?"))]),
  el("div", { class: "sides" }, comparison.sides.map(sideCard)),
  effects?.verdicts?.length ? el("div", { class: "verdicts" }, effects.verdicts.map(verdictChip)) : null,
  el("main", null,
    el("h2", { class: "visually-hidden" }, "Changes"),
    toolbar,
    el("div", { class: "columns" }, grid, panel),
    withoutOverride,
    el("div", { class: "follows" }, effectSections(effects))));
refresh();
if (!followLink()) {
  const first = NARROW.matches ? null : rows.find((row) => row.changes.length);
  if (first) select(first.index, { scroll: false, link: false });
  else inspect(null);
}
