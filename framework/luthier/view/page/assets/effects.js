// The effects of a diff: verdicts, quantities before and after, curves of both sides.

/** A verdict on one line; its reasons open below it. */
function verdictChip(verdict) {
  const [first, ...rest] = verdict.text.split("\n").map((line) => line.trim().replace(/^- /, "")).filter(Boolean);
  const isWarning = verdict.severity === "warn";
  const line = [el("span", { "aria-hidden": "true" }, isWarning ? "!" : "✓"), el("b", null, verdict.name), el("span", null, rest.length ? first.replace(/:$/, "") : first)];
  const classes = `verdict ${isWarning ? "warn" : "ok"}`;
  if (!rest.length) return el("p", { class: classes }, line);
  return el("details", { class: classes }, el("summary", null, line), el("ul", { class: "mono" }, rest.map((one) => el("li", null, one))));
}

const MOST_QUANTITIES = 9;

function quantityTable(quantities) {
  const groups = [...new Set(quantities.map((one) => one.group))];
  const body = groups.map((group) => {
    const members = quantities.filter((one) => one.group === group);
    const most = Math.max(...members.flatMap((one) => [one.before, one.after]).filter((n) => typeof n === "number"), 0);
    const lines = members.map((one) => quantityRow(one, most));
    const later = lines.length > MOST_QUANTITIES + 1 ? lines.splice(MOST_QUANTITIES) : [];
    const more = later.length ? el("tr", { class: "more no-print" }, el("td", { colspan: 5 },
      el("button", { class: "bare", type: "button", onclick: () => more.replaceWith(...later) }, `${later.length} more`))) : null;
    return el("tbody", null, el("tr", { class: "group" }, el("th", { colspan: 5, scope: "rowgroup" }, group)), lines, more);
  });
  return el("div", { class: "panel scroller quantities-panel" }, el("table", { class: "plain quantities" },
    el("caption", { class: "visually-hidden" }, "Effects of the changes"),
    el("thead", null, el("tr", null, el("th", { scope: "col" }, "Quantity"),
      el("th", { scope: "col", class: "number" }, el("b", { class: "side-0" }, "A")),
      el("th", { scope: "col", class: "number" }, el("b", { class: "side-1" }, "B")),
      el("th", { scope: "col", class: "number" }, "Change"), el("td", null))), body));
}

function quantityRow(one, most) {
  const isSame = one.before === one.after;
  // A number keeps its unit beside it; a text breaks where it has to.
  const cell = (value, side) => el("td", { class: `number ${typeof value === "string" ? "text" : ""} ${isSame ? "muted" : `side-${side}`}`,
    title: typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 20 }) : null }, formatNumber(value, one.unit));
  return el("tr", null,
    el("th", { scope: "row" }, one.name, one.note ? el("span", { class: "muted note" }, one.note) : null),
    cell(one.before, 0), cell(one.after, 1),
    el("td", { class: "number" }, isSame ? el("span", { class: "muted" }, "same") : formatChange(one.before, one.after)),
    el("td", { class: "bars-cell" }, one.unit === "bytes" ? pairOfBars(one, most) : null));
}

/** Two thin bars, A over B, of one scale with the others of the group. */
function pairOfBars(one, most) {
  const width = (value) => (typeof value === "number" && most > 0 ? (value / most) * 120 : 0);
  return svg("svg", { class: "bars", viewBox: "0 0 120 12", width: 120, height: 12, "aria-hidden": "true" },
    svg("rect", { class: "fill-0", x: 0, y: 0, height: 5, width: width(one.before), rx: 1 }),
    svg("rect", { class: "fill-1", x: 0, y: 7, height: 5, width: width(one.after), rx: 1 }));
}

/** The sections of effects; `effects` may be nothing. */
function effectSections(effects) {
  if (!effects) return [];
  const sections = [];
  if (effects.quantities?.length) {
    sections.push(el("section", { class: "section", id: "effects", "aria-labelledby": "effects-title" },
      el("header", null, el("h2", { id: "effects-title" }, "Effects")), quantityTable(effects.quantities)));
  }
  if (effects.charts?.length) {
    sections.push(el("section", { class: "section", id: "curves", "aria-labelledby": "curves-title" },
      el("header", null, el("h2", { id: "curves-title" }, "Curves")), el("div", { class: "charts" }, effects.charts.map(lineChart))));
  }
  return sections;
}
