// The page of a diff: a tree of the changes. Only the rows in sight are in the document, so that a
// large graph scrolls smoothly. A row is as high as its longest text needs. So that the heights of
// all rows are known without drawing them, names and values are in a font of equal widths and break
// anywhere: the lines of a text follow from the number of its characters.

const KINDS = {
  changed: ["changed", "another value"],
  added: ["added", "is new"],
  removed: ["removed", "is gone"],
  set: ["set", "was at its default"],
  reset: ["reset", "is at its default again"],
  default: ["default", "the default itself is another one"],
  class: ["class", "another class or function"],
  moved: ["moved", "is at another place"],
  shared: ["shared", "is now one and the same as another place"],
  unshared: ["split", "is no longer the same as another place"],
  tags: ["tags", "other tags"],
};
const ROW_HEIGHT = 28;
const LINE_HEIGHT = 18;
const BADGE_LINE_HEIGHT = 22;
/** A cell with more lines scrolls. */
const MOST_LINES = 12;
const MARGIN_ROWS = 12;
const LONGEST_STRETCH = 12;
const SIDES = ["A", "B"];
/** Where the selected setting is shown below the tree, and not beside it. */
const NARROW = window.matchMedia("(max-width: 70rem)");

const { comparison, effects } = readData();
const changes = comparison.changes;

// ---- the rows ------------------------------------------------------------------------------

/** Rows as the page needs them: parents, all their changes, the text that is searched. */
function prepareRows() {
  const above = [];
  const rows = comparison.rows.map((row, index) => {
    above.length = row.depth;
    const parent = row.depth ? above[row.depth - 1] ?? -1 : -1;
    above[row.depth] = index;
    return { ...row, index, parent, key: row.path || row.path_before, changes: row.change === null ? [] : [row.change], side: sideOf(row) };
  });
  const shownChanges = new Set(rows.flatMap((row) => row.changes));
  const places = new Map(rows.map((row) => [row.key, row]));
  changes.forEach((change, number) => {
    if (shownChanges.has(number)) return;
    const place = places.get(change.path) || (change.path_before && places.get(change.path_before));
    if (place) place.changes.push(number);
    else {
      const { path, path_before, before, after } = change;
      rows.push({ depth: 0, path, path_before, key: path, name: path, before, after, change: number, opens: false,
        index: rows.length, parent: -1, changes: [number], side: "both" });
    }
  });
  for (const row of rows) {
    row.inside = 0;
    row.text = `${row.key}\n${row.before ?? ""}\n${row.after ?? ""}`.toLowerCase();
  }
  for (const row of rows) {
    if (!row.changes.length) continue;
    for (let at = row.parent; at >= 0; at = rows[at].parent) rows[at].inside += row.changes.length;
  }
  return rows;
}

function sideOf(row) {
  if (row.before === null && row.after !== null) return "after";
  if (row.after === null && row.before !== null) return "before";
  return "both";
}

const rows = prepareRows();
const rowOfPath = new Map();
for (const name of ["path", "path_before"]) {
  for (const row of rows) if (row[name] && !rowOfPath.has(row[name])) rowOfPath.set(row[name], row);
}

const state = {
  view: "split", words: [], path: null, kinds: new Set(), everything: false,
  opened: new Set(), folded: new Set(), shown: [], active: null,
};

// ---- which rows are in the list ------------------------------------------------------------

/** A test for paths: `optimizer` is all that begins so, `*` is one part of a path, `**` any number. */
function pathTest(text) {
  const pattern = text.trim();
  if (!pattern) return null;
  const escaped = pattern.split(/(\*\*|\*)/).map((part) =>
    part === "**" ? ".*" : part === "*" ? "[^.\\[\\]]*" : part.replace(/[.\\+?^${}()|[\]]/g, "\\$&")).join("");
  const expression = new RegExp(pattern.includes("*") ? `^${escaped}$` : `^${escaped}`);
  return (path) => expression.test(path);
}

function isFiltered() {
  return state.words.length > 0 || state.path !== null || state.kinds.size > 0;
}

function matches(row) {
  if (state.path && !state.path(row.key) && !(row.path_before && state.path(row.path_before))) return false;
  if (state.kinds.size && !row.changes.some((number) => state.kinds.has(changes[number].kind))) return false;
  return state.words.every((word) => row.text.includes(word) || row.changes.some((n) => KINDS[changes[n].kind]?.[0] === word));
}

/** The rows of the list: rows, and places where unchanged ones are left out. */
function listRows() {
  const filtered = isFiltered();
  const wanted = new Uint8Array(rows.length);
  let found = 0;
  let foundChanges = 0;
  for (const row of rows) {
    if (filtered ? matches(row) : row.changes.length) {
      found += 1;
      foundChanges += row.changes.length;
      for (let at = row.index; at >= 0 && !wanted[at]; at = rows[at].parent) wanted[at] = 1;
    } else if (!filtered && (state.everything || state.opened.has(row.index))) wanted[row.index] = 1;
  }
  const list = [];
  let stretch = null;
  let folded = -1;
  for (const row of rows) {
    if (folded >= 0 && row.depth > folded) continue;
    folded = -1;
    if (!wanted[row.index] && filtered) continue;
    if (wanted[row.index]) {
      stretch = null;
      list.push({ row });
      if (row.opens && state.folded.has(row.index)) folded = row.depth;
    } else if (stretch && stretch.side === row.side) {
      stretch.depth = Math.min(stretch.depth, row.depth);
      stretch.hidden.push(row.index);
    } else list.push(stretch = { row: null, side: row.side, depth: row.depth, hidden: [row.index] });
  }
  const shown = list.flatMap((item) => (isShort(item) ? item.hidden.map((index) => ({ row: rows[index] })) : [item]));
  return { shown, found, foundChanges, filtered };
}

/** Whether a stretch is shown as it is: what was added or removed, if it is not long. */
function isShort(item) {
  return !item.row && (item.side !== "both" ? item.hidden.length <= LONGEST_STRETCH : item.hidden.length === 1);
}

// ---- the list ------------------------------------------------------------------------------

/** A side without its overrides, which are on top of the page. */
function nameOf(side) {
  const [name, ...overrides] = side.title.split(" ");
  return overrides.length ? `${name} …` : name;
}

const body = el("div", { class: "rows", role: "rowgroup" });
const count = el("p", { class: "muted", role: "status", "aria-live": "polite", id: "count" });
const grid = el("div", { class: "panel long tree split", role: "treegrid", tabindex: "0", id: "changes", "aria-label": "Settings of both sides" },
  el("div", { class: "row head", role: "row", "aria-rowindex": "1" },
    el("span", { role: "columnheader" }, "Setting"),
    el("span", { role: "columnheader", class: "before" }, el("b", { class: "side-0" }, "A"), ` ${nameOf(comparison.sides[0])}`),
    el("span", { role: "columnheader", class: "after" }, el("b", { class: "side-1" }, "B"), ` ${nameOf(comparison.sides[1])}`),
    el("span", { role: "columnheader" }, "Change")),
  body);
let drawn = [0, 0];

// A row without content that shows how wide the cells are in this window and view.
const ruler = el("span", { class: "value" }, "0".repeat(100));
const probe = el("div", { class: "row probe", "aria-hidden": "true" }, el("span", { class: "name" }),
  el("span", { class: "values" }, el("span", { class: "value before" }), el("span", { class: "value after" })), el("span", { class: "what" }), ruler);
grid.append(probe);
/** The width of the cells without their padding, of a character, and of a level of the tree. */
let room = null;
/** Where each row begins, and the end of the last. */
let offsets = [0];

function measureRoom() {
  const pixels = (text) => parseFloat(text) || 0;
  const widthOf = (selector) => {
    const style = getComputedStyle(probe.querySelector(selector));
    return pixels(style.width) - pixels(style.paddingLeft) - pixels(style.paddingRight);
  };
  const style = getComputedStyle(probe);
  const [before, after, values] = [".before", ".after", ".values"].map(widthOf);
  room = {
    name: widthOf(".name") - pixels(getComputedStyle(document.documentElement).fontSize) * 1.4,
    value: state.view === "split" ? Math.min(before, after) : values,
    what: widthOf(".what"),
    character: ruler.getBoundingClientRect().width / ruler.textContent.length,
    indent: pixels(style.getPropertyValue("--indent")) * pixels(getComputedStyle(document.documentElement).fontSize),
    isStacked: style.getPropertyValue("--stacked").trim() === "1",
  };
}

function linesOf(length, width) {
  const most = Math.max(1, Math.floor(width / room.character));
  return Math.min(MOST_LINES, Math.max(1, Math.ceil(length / most)));
}

function depthOf(row) {
  return Math.min(row.depth, room && room.isStacked ? 12 : 24);
}

function heightOf(item) {
  if (!item.row) return ROW_HEIGHT;
  const { row } = item;
  const count = state.folded.has(row.index) && row.inside ? 12 : 0;
  const name = linesOf((row.name || "(all)").length + count, room.name - depthOf(row) * room.indent);
  const [before, after] = valuesOf(row).map((text) => (text ?? "").length);
  const isOne = row.before === row.after || !before || !after;
  const value = state.view === "split" ? Math.max(before, after) : isOne ? Math.max(before, after) : before + after + 6;
  const lines = room.isStacked ? name + (value ? linesOf(value, room.value) : 0) : Math.max(name, linesOf(value, room.value));
  const badges = row.changes.reduce((width, n) => width + 22 + 7 * badgeText(changes[n]).length, 0)
    + (row.changes.length ? 8 * sizeOf(changes[row.changes[0]]).length : 0);
  const badgeLines = room.what > 0 ? Math.max(1, Math.ceil(badges / room.what)) : 1;
  return ROW_HEIGHT + Math.max((lines - 1) * LINE_HEIGHT, (badgeLines - 1) * BADGE_LINE_HEIGHT);
}

/** Find the place of every row of the list. */
function layOut() {
  measureRoom();
  offsets = [0];
  for (const item of state.shown) offsets.push(offsets.at(-1) + heightOf(item));
}

/** The row of the list at a height below its top. */
function positionAt(height) {
  let [low, high] = [0, state.shown.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (offsets[middle + 1] <= height) low = middle + 1;
    else high = middle;
  }
  return low;
}

function marked(text) {
  const words = state.words.filter(Boolean);
  if (!words.length || !text) return [text ?? ""];
  const lower = text.toLowerCase();
  const found = [];
  let at = 0;
  while (at < text.length) {
    const next = words.map((word) => [lower.indexOf(word, at), word.length]).filter(([i]) => i >= 0).sort((a, b) => a[0] - b[0])[0];
    if (!next || lower.length !== text.length) break;
    found.push(text.slice(at, next[0]), el("mark", null, text.slice(next[0], next[0] + next[1])));
    at = next[0] + next[1];
  }
  found.push(text.slice(at));
  return found;
}

/** The values of a row as they are shown; null where a side has none. */
function valuesOf({ before, after }) {
  return [before === null ? null : short(before, after), after === null ? null : short(after, before)];
}

/** Set how deep a row is, and how high; the policy of the page allows no style attributes. */
function placed(node, item) {
  node.style.setProperty("--depth", item.row ? depthOf(item.row) : Math.min(item.depth, 24));
  node.style.height = `${heightOf(item)}px`;
  return node;
}

function drawRow(item, position) {
  return placed(rowNode(item, position), item);
}

function rowNode(item, position) {
  const attributes = { role: "row", "aria-rowindex": position + 2, id: `row-${position}`, "data-position": position };
  if (!item.row) {
    const many = item.hidden.length.toLocaleString("en");
    const what = { both: "unchanged", before: "more removed", after: "more added" }[item.side];
    return el("div", { ...attributes, class: "row gap", "aria-level": item.depth + 1, "aria-expanded": "false" },
      el("span", { role: "gridcell", class: "name" }, el("span", { class: "twisty" }, "⋯"), `${many} ${what}`));
  }
  const { row } = item;
  const change = row.changes.length ? changes[row.changes[0]] : null;
  const isFolded = state.folded.has(row.index);
  const classes = ["row", change ? `changed kind-${change.kind}` : `same side-${row.side}-only`];
  if (row.before === row.after) classes.push("alike");
  if (state.active === row.index) classes.push("active");
  const [before, after] = valuesOf(row);
  return el("div", { ...attributes, class: classes.join(" "), "aria-level": row.depth + 1, "aria-selected": state.active === row.index ? "true" : "false",
    "aria-expanded": row.opens ? String(!isFolded) : null },
    el("span", { role: "rowheader", class: "name" },
      el("span", { class: "twisty" }, row.opens ? (isFolded ? "▸" : "▾") : ""), el("span", { class: "label", title: row.key }, marked(row.name || "(all)")),
      isFolded && row.inside ? el("span", { class: "count" }, plural(row.inside, "change")) : null),
    el("span", { role: "none", class: "values" },
      el("span", { role: "gridcell", class: "value before" }, before === null ? "" : marked(before)),
      el("span", { role: "gridcell", class: "arrow", "aria-hidden": "true" }, change && before !== null && after !== null ? "→" : ""),
      el("span", { role: "gridcell", class: "value after" }, after === null ? "" : marked(after))),
    el("span", { role: "gridcell", class: "what" }, change ? row.changes.map((n) => badge(changes[n])) : null,
      change && sizeOf(change) ? el("span", { class: "size" }, sizeOf(change)) : null));
}

function badgeText(change) {
  return KINDS[change.kind]?.[0] || change.kind;
}

function badge(change) {
  return el("span", { class: `badge ${change.kind}`, title: KINDS[change.kind]?.[1] }, badgeText(change));
}

function sizeOf(change) {
  if (change.ratio === null && change.difference === null) return "";
  return formatChange(change.value_before, change.value_after);
}

/** Draw the rows that are in sight; nothing is done where they are drawn already. */
function draw(isForced) {
  if (body.dataset.whole) return;
  const top = body.getBoundingClientRect().top;
  const first = Math.max(0, positionAt(-top) - MARGIN_ROWS);
  const last = Math.min(state.shown.length, positionAt(window.innerHeight - top) + MARGIN_ROWS);
  if (!isForced && first >= drawn[0] && last <= drawn[1] && drawn[1] - drawn[0] < 400) return;
  const from = Math.max(0, first - MARGIN_ROWS);
  const to = Math.max(from, Math.min(state.shown.length, last + MARGIN_ROWS));
  drawn = [from, to];
  body.replaceChildren(...state.shown.slice(from, to).map((item, i) => drawRow(item, from + i)));
  body.style.paddingTop = `${offsets[from]}px`;
  body.style.paddingBottom = `${offsets.at(-1) - offsets[to]}px`;
  const position = positionOf(state.active);
  if (position >= from && position < to) grid.setAttribute("aria-activedescendant", `row-${position}`);
  else grid.removeAttribute("aria-activedescendant");
}

/** Draw all rows, for paper. */
function drawWhole() {
  body.replaceChildren(...state.shown.map(drawRow));
  body.style.paddingTop = body.style.paddingBottom = "0";
  body.dataset.whole = "yes";
}

function positionOf(index) {
  return index === null ? -1 : state.shown.findIndex((item) => item.row && item.row.index === index);
}

/** Rebuild the list, and show the number of its rows. */
function refresh() {
  const { shown, found, foundChanges, filtered } = listRows();
  state.shown = shown;
  grid.setAttribute("aria-rowcount", shown.length + 1);
  const all = plural(changes.length, "change");
  if (!rows.length) count.textContent = "No settings";
  else if (filtered) count.textContent = found ? `${plural(found, "setting")} found, ${foundChanges} of ${all}` : "Nothing found";
  else count.textContent = changes.length ? `${all} in ${plural(rows.length, "setting")}` : `No difference in ${plural(rows.length, "setting")}`;
  grid.classList.toggle("empty", !shown.length);
  layOut();
  draw(true);
}

/** Select a row: show its details, and scroll it into view. */
function select(index, { scroll = true, link = true } = {}) {
  state.active = index;
  if (index !== null) {
    for (let at = rows[index].parent; at >= 0; at = rows[at].parent) state.folded.delete(at);
    if (positionOf(index) < 0) {
      state.opened.add(index);
      for (let at = rows[index].parent; at >= 0; at = rows[at].parent) state.opened.add(at);
      refresh();
      if (positionOf(index) < 0) { clearFilters(); refresh(); }
    }
    if (link) history.replaceState(null, "", `#${encodeURIComponent(rows[index].key)}`);
  }
  if (scroll && index !== null) {
    const top = body.getBoundingClientRect().top + offsets[positionOf(index)];
    const head = grid.firstElementChild.getBoundingClientRect().bottom;
    const foot = window.innerHeight * (NARROW.matches ? 0.6 : 1);
    const sticky = Math.max(head, 120);
    if (top < sticky || top > foot - 3 * ROW_HEIGHT) window.scrollBy({ top: top - (sticky + foot) / 2.5 });
  }
  draw(true);
  inspect(index === null ? null : rows[index]);
}

/** Go to the next or the previous change of the list. */
function step(direction) {
  const start = positionOf(state.active);
  const from = start < 0 ? (direction > 0 ? -1 : state.shown.length) : start;
  for (let at = from + direction; at >= 0 && at < state.shown.length; at += direction) {
    const { row } = state.shown[at];
    if (row && row.changes.length) return select(row.index);
  }
  return announce(direction > 0 ? "That was the last change" : "That was the first change");
}

function moveBy(delta, isEdge) {
  const start = positionOf(state.active);
  let at = isEdge ? (delta < 0 ? 0 : state.shown.length - 1) : start + delta;
  while (state.shown[at] && !state.shown[at].row) at += Math.sign(delta) * (isEdge ? -1 : 1);
  if (state.shown[at]) select(state.shown[at].row.index);
}

function fold(row, isFolded) {
  if (isFolded) state.folded.add(row.index);
  else state.folded.delete(row.index);
  refresh();
}

function openGap(item) {
  for (const index of item.hidden) state.opened.add(index);
  refresh();
}

// ---- one change in full --------------------------------------------------------------------

const panel = el("aside", { class: "panel inspector", "aria-label": "The selected setting" });

/** Two texts with their different parts marked. */
function withoutCommon(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  if (start + end < 4) return [[before], [after]];
  return [before, after].map((text) => [text.slice(0, start), el("ins", null, text.slice(start, text.length - end)), text.slice(text.length - end)]);
}

function inspect(row) {
  panel.classList.toggle("idle", !row);
  if (!row) {
    panel.replaceChildren(el("p", { class: "muted" }, "Select a setting to see all of it. ", el("kbd", null, "j"), " and ", el("kbd", null, "k"), " move between changes."));
    return;
  }
  const close = el("button", { class: "bare close", type: "button", "aria-label": "Close", onclick: () => select(null) }, "✕");
  const parts = row.changes.length ? row.changes.flatMap((number) => changeParts(changes[number], row)) : sameParts(row);
  panel.replaceChildren(el("header", null, el("h3", { class: "path mono" }, row.key || "(all)"), close), ...parts,
    el("div", { class: "chips" }, row.changes.map((n) => changes[n]).filter((change) => typeof change.override === "string").slice(0, 1).map((change) =>
      el("button", { type: "button", onclick: () => copyOverride(change) }, "Copy override ", el("kbd", null, "c"))),
    el("button", { type: "button", onclick: () => copyText(`${location.href.split("#")[0]}#${encodeURIComponent(row.key)}`, "Link copied") }, "Copy link")));
}

function sameParts(row) {
  const text = row.after ?? row.before;
  const word = { both: "Unchanged", before: "Only in A", after: "Only in B" }[row.side];
  return [el("p", { class: "muted" }, word), text ? el("pre", { class: "value" }, text) : null].filter(Boolean);
}

function changeParts(change, row) {
  const size = sizeOf(change);
  const difference = typeof change.difference === "number" ? `${change.difference > 0 ? "+" : ""}${significant(change.difference, 6)}` : "";
  const head = el("p", { class: "chips" }, badge(change), el("span", { class: "muted" }, KINDS[change.kind]?.[1]),
    size ? el("span", { class: "size" }, [size, difference && difference !== size ? difference : null].filter(Boolean).join("  ")) : null);
  const sides = [0, 1].map((side) => {
    const text = side ? change.after : change.before;
    const origin = side ? change.origin_after : change.origin_before;
    return [text, origin];
  });
  const texts = sides[0][0] !== null && sides[1][0] !== null ? withoutCommon(sides[0][0], sides[1][0]) : [[sides[0][0]], [sides[1][0]]];
  const facts = [
    change.path_before && change.path_before !== change.path ? ["was at", change.path_before] : null,
    change.same_as ? ["same as", change.same_as] : null,
    change.carried?.length ? ["carried over", change.carried.join(", ")] : null,
    change.dropped?.length ? ["dropped", change.dropped.join(", ")] : null,
    change.gained?.length ? ["gained", change.gained.join(", ")] : null,
  ].filter(Boolean);
  const copied = change.override === null || change.override === undefined
    ? el("p", { class: "muted" }, "No override makes this change", change.no_override ? `: ${change.no_override}` : "", ". ", comparison.patch ? "The fiddler does." : "")
    : el("pre", { class: "override" }, change.override);
  return [head,
    ...sides.map(([text, origin], side) => (text === null ? null : el("div", { class: `side side-${side}-box` },
      el("h3", null, el("b", { class: `side-${side}` }, SIDES[side]), origin ? el("span", { class: "origin" }, ` from ${origin}`) : null),
      el("pre", { class: "value" }, texts[side])))).filter(Boolean),
    facts.length ? el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", null, name), el("dd", { class: "mono" }, value)])) : null,
    change.effective ? null : el("p", { class: "muted" }, "The built objects stay the same."),
    copied].filter(Boolean);
}

function copyOverride(change) {
  return copyText(shellQuote(change.override), "Override copied");
}

function copyActive() {
  const row = state.active === null ? null : rows[state.active];
  const change = row && row.changes.map((n) => changes[n]).find((one) => typeof one.override === "string");
  return change ? copyOverride(change) : announce(row ? "No override makes this change" : "Select a change first");
}
