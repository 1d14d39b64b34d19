// A matrix: rows are settings that vary, columns are configs, runs or trials, objectives are on top.

/** Titles of columns that are longer are in a legend, and letters stand for them. */
const LONGEST_HEAD = 16;

/** The name of a column as in spreadsheets: A, B, ..., Z, AA. */
function letterOf(index) {
  const rest = index % 26;
  return (index >= 26 ? letterOf((index - rest) / 26 - 1) : "") + String.fromCharCode(65 + rest);
}

/** How far every number of a row is on the way from its lowest to its highest; nothing for texts. */
function shades(values) {
  const numbers = values.filter(Number.isFinite);
  if (!numbers.length) return values.map(() => null);
  const low = numbers.reduce((a, b) => Math.min(a, b));
  const high = numbers.reduce((a, b) => Math.max(a, b));
  if (low === high) return values.map((v) => (Number.isFinite(v) ? 0 : null));
  const isWide = low > 0 && high / low >= 30;
  const warp = isWide ? Math.log : (n) => n;
  return values.map((v) => (Number.isFinite(v) ? (warp(v) - warp(low)) / (warp(high) - warp(low)) : null));
}

/** Which of the texts of a row each is, in the order in which they come first. */
function categories(texts) {
  const names = [...new Set(texts)];
  return texts.map((text) => names.indexOf(text));
}

function matrixLine(row, isObjective) {
  const values = row.values.map((v) => (typeof v === "number" ? v : null));
  const full = isObjective ? values.map((v) => (v === null ? "" : String(v))) : row.texts;
  const texts = full.map((text, i) => (values[i] === null ? short(text, full[0]) : Number.isInteger(values[i]) ? formatNumber(values[i]) : significant(values[i], 4)));
  const isNumeric = values.some((v) => v !== null);
  const isLower = row.direction !== "higher";
  const numbers = values.filter((v) => v !== null);
  const best = isObjective && numbers.length ? numbers.reduce((a, b) => (isLower ? Math.min(a, b) : Math.max(a, b))) : null;
  return { name: isObjective ? row.name : row.path, note: isObjective ? `${isLower ? "lower" : "higher"} is better` : "", texts, full, values, isNumeric, isObjective, best,
    shades: isNumeric ? shades(values) : null, kinds: isNumeric ? null : categories(texts), isLower };
}

/** The order of the columns by one line: numbers by size, texts by name, what is missing last. */
function orderBy(line, isDown) {
  const order = line.texts.map((_, i) => i);
  const sign = isDown ? -1 : 1;
  const compare = (i, j) => {
    if (!line.isNumeric) return sign * line.texts[i].localeCompare(line.texts[j]) || i - j;
    const [a, b] = [line.values[i], line.values[j]];
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return sign * (a - b) || i - j;
  };
  return order.sort(compare);
}

function matrixCell(line, column, base) {
  const { full, texts } = line;
  if (base !== null && column && !line.isObjective && full[column] === full[0]) {
    return el("td", { class: "same", title: full[0] }, el("span", { "aria-hidden": "true" }, "·"), el("span", { class: "visually-hidden" }, `same as ${base}`));
  }
  if (!full[column]) return el("td", { class: "none", title: line.isObjective ? "no result" : "not set" }, el("span", null, "–"));
  const cell = el("td", { title: full[column] }, el("span", null, texts[column]));
  if (line.shades && line.shades[column] !== null) {
    cell.className = "shaded";
    cell.style.setProperty("--shade", `${Math.round(6 + 38 * line.shades[column])}%`);
  } else if (line.kinds) cell.className = `kind-of kind-of-${line.kinds[column] % 6}`;
  if (line.best !== null && line.values[column] === line.best) cell.classList.add("best");
  return cell;
}

/** How the marks and colours of a matrix are read. */
function matrixLegend(lines, base) {
  const settings = lines.filter((line) => !line.isObjective);
  const facts = [
    base !== null ? `· the same as ${base}` : null,
    lines.some((line) => line.shades) ? "the stronger the colour, the larger within its row" : null,
    settings.some((line) => line.kinds) ? "one colour for each text of a row" : null,
    lines.some((line) => line.best !== null) ? "the best result is underlined" : null,
  ].filter(Boolean);
  return facts.length ? el("p", { class: "muted matrix-legend" }, facts.join("; ")) : null;
}

/** The letters of columns with their titles. */
function columnLegend(columns) {
  return el("ol", { class: "panel columns-legend" }, columns.map((column, i) => {
    const link = safeLink(column.link);
    return el("li", null, el("b", null, letterOf(i)), el("span", { class: "mono" }, link ? el("a", { href: link }, column.title) : column.title,
      column.state ? el("span", { class: "state muted" }, ` (${column.state})`) : null));
  }));
}

/** The table of a matrix, with a line that shows how it is sorted.
 *
 * With `isAgainstFirst`, a cell that equals the one of the first column is a dot. `sorted` is how it is sorted at
 * first, and is kept up to date: a page that is made again can pass it on.
 */
function matrixTable(data, isAgainstFirst, sorted = { name: null, isDown: false }) {
  const lines = [...data.objectives.map((row) => matrixLine(row, true)), ...data.rows.map((row) => matrixLine(row, false))];
  const columns = data.columns;
  const noun = data.noun || "trial";
  const corner = noun[0].toUpperCase() + noun.slice(1);
  const isLettered = columns.some((column) => column.title.length > LONGEST_HEAD);
  const titleOf = (i) => (isLettered ? letterOf(i) : columns[i].title);
  const base = isAgainstFirst && columns.length ? titleOf(0) : null;
  const sortedLine = () => lines.find((line) => line.name === sorted.name) || null;
  const table = el("table", { class: "matrix" });
  const status = el("p", { class: "muted", role: "status", "aria-live": "polite" });

  const head = (order) => el("thead", null, el("tr", null, el("th", { scope: "col", class: "corner" },
    el("button", { class: "bare sort", type: "button", onclick: () => sort(null) }, corner)),
  order.map((i) => {
    const link = isLettered ? null : safeLink(columns[i].link);
    return el("th", { scope: "col", class: `state-${/^[a-z]+$/.test(columns[i].state) ? columns[i].state : "other"}`, title: isLettered ? columns[i].title : columns[i].state },
      link ? el("a", { href: link }, titleOf(i)) : titleOf(i), !isLettered && columns[i].state && columns[i].state !== "complete" ? el("span", { class: "state" }, columns[i].state) : null);
  })));

  function show() {
    const by = sortedLine();
    const order = by ? orderBy(by, sorted.isDown) : columns.map((_, i) => i);
    const mark = (line) => (line === by ? (sorted.isDown ? " ↓" : " ↑") : "");
    table.replaceChildren(el("caption", { class: "visually-hidden" }, data.title), head(order), el("tbody", null, lines.map((line) =>
      el("tr", { class: line.isObjective ? "objective" : null },
        el("th", { scope: "row", "aria-sort": line === by ? (sorted.isDown ? "descending" : "ascending") : "none" },
          el("button", { class: "bare sort", type: "button", title: line.note || null, onclick: () => sort(line) }, line.name, mark(line))),
        order.map((i) => matrixCell(line, i, base))))));
    status.textContent = by ? `Sorted by ${by.name}, ${sorted.isDown ? "highest" : "lowest"} first` : `${plural(columns.length, noun)}, in their order`;
  }

  function sort(line) {
    const again = line !== null && line === sortedLine();
    sorted.isDown = again ? !sorted.isDown : line !== null && line.isObjective && !line.isLower;
    sorted.name = line && line.name;
    show();
    const button = [...table.querySelectorAll("button.sort")].find((one) => one.textContent.startsWith(sorted.name || corner));
    if (button) button.focus();
  }
  show();
  return [isLettered ? columnLegend(columns) : null, status, matrixLegend(lines, base), el("div", { class: "panel scroller", tabindex: "0", role: "region", "aria-label": data.title }, table)].filter(Boolean);
}
