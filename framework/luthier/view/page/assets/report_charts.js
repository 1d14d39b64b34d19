// The charts of a study: history, importance, parallel coordinates, slices over time, Pareto front.

const MOST_MARKS = 3000;

function chartPanel(name, note, image, { legend, size = "" } = {}) {
  return el("figure", { class: `panel chart ${size}` },
    el("figcaption", null, el("span", { class: "name" }, name), legend || el("span", { class: "note" }, note)), image);
}

/** Whether a logarithmic scale suits the numbers. */
function scaleKind(numbers) {
  const low = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  return low > 0 && high / low >= 30 ? "log" : "linear";
}

/** The trials that have a finite value of an objective. */
function withValue(trials, index) {
  return trials.filter((t) => t.state === "complete" && t.values && Number.isFinite(t.values[index]));
}

function dot(trial, x, y, isBest, words) {
  return svg("circle", { class: isBest ? "dot best" : "dot", cx: x.toFixed(1), cy: y.toFixed(1), r: isBest ? 5 : 3.2, "data-trial": trial.number }, svg("title", null, words));
}

function trialTitle(report, trial) {
  const values = (trial.values || []).map((v, i) => `${report.metrics[i]} ${formatNumber(v)}`).join(", ");
  return [`trial ${trial.number}`, trial.state === "complete" ? null : trial.state, values || null, shortened(trial.words)].filter(Boolean).join(": ");
}

/** A text whose long numbers are cut to what people compare. */
function shortened(text) {
  return text.replace(/-?\d+\.\d{5,}(e[-+]?\d+)?/g, (number) => significant(Number(number), 4));
}

function historyChart(report, index) {
  const trials = withValue(report.trials, index);
  const isLower = report.directions[index] === "lower";
  const values = trials.map((t) => t.values[index]);
  const marks = trials.length > MOST_MARKS ? trials.filter((t, i) => i % Math.ceil(trials.length / MOST_MARKS) === 0 || report.best.includes(t.number)) : trials;
  const steps = [];
  let best = null;
  for (const trial of trials) {
    const value = trial.values[index];
    if (best === null || (isLower ? value < best : value > best)) {
      if (best !== null) steps.push([trial.number, best]);
      best = value;
      steps.push([trial.number, value]);
    }
  }
  if (steps.length) steps.push([Math.max(report.trials.length - 1, 1), best]);
  const name = report.metrics[index];
  const label = `${name} of ${plural(trials.length, "complete trial")} in their order; best ${best === null ? "none" : formatNumber(best)}`;
  const isAlone = report.metrics.length === 1;
  const image = drawing({ label, width: isAlone ? 880 : 440, x: { numbers: [0, Math.max(report.trials.length - 1, 1)], format: wholeTick }, y: { kind: scaleKind(values), numbers: values }, xLabel: "trial",
    draw: (xs, ys) => [svg("path", { class: "line best-line", d: linePath(steps, xs, ys) }),
      marks.map((t) => dot(t, xs.place(t.number), ys.place(t.values[index]), report.best.includes(t.number), trialTitle(report, t)))] });
  const legend = el("span", { class: "legend" }, el("span", { class: "dots" }, "trial"),
    el("span", { class: "best-key" }, el("span", { class: "key" }), `best so far, ${isLower ? "lower" : "higher"} is better`));
  return chartPanel(`History of ${name}`, "", image, { legend, size: isAlone ? "double" : "" });
}

function wholeTick(value) {
  return Number.isInteger(value) ? tickText(value) : "";
}

function importanceChart(report) {
  const { rows, settings, fewest } = report.importance;
  if (!rows.length) {
    const why = settings < fewest ? `${plural(fewest, "complete setting")} are needed; there are ${settings}.` : "Nothing varied.";
    return el("figure", { class: "panel chart" }, el("figcaption", null, el("span", { class: "name" }, "Importance")), el("p", { class: "muted" }, why));
  }
  const rough = settings < 50 ? ", a rough guess" : "";
  return el("figure", { class: "panel chart" },
    el("figcaption", null, el("span", { class: "name" }, "Importance"), el("span", { class: "note" }, `PED-ANOVA of ${plural(settings, "setting")}${rough}`)),
    el("ul", { class: "shares", "aria-label": "Importance of each setting" },
      rows.slice(0, 10).map((row) => el("li", null, el("span", { class: "mono" }, row.path), " ", el("span", { class: "number" }, `${(row.share * 100).toFixed(0)} %`),
        svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("rect", { class: "bar-track", x: 0, y: 0, width: 100, height: 6 }), svg("rect", { class: "bar", x: 0, y: 0, width: row.share * 100, height: 6 }))))));
}

function paretoChart(report) {
  const trials = report.trials.filter((t) => t.state === "complete" && t.values && t.values.slice(0, 2).every(Number.isFinite));
  const [first, second] = [0, 1].map((i) => trials.map((t) => t.values[i]));
  const front = trials.filter((t) => report.best.includes(t.number)).map((t) => t.values.slice(0, 2)).sort((a, b) => a[0] - b[0]);
  const [x, y] = [{ kind: scaleKind(first), numbers: first }, { kind: scaleKind(second), numbers: second }];
  const label = `${report.metrics[1]} over ${report.metrics[0]}; ${plural(front.length, "trial")} on the Pareto front`;
  const image = drawing({ label, x, y, xLabel: `${report.metrics[0]} (${report.directions[0]} is better)`,
    draw: (xs, ys) => [report.metrics.length === 2 ? svg("path", { class: "line best-line", d: linePath(front, xs, ys) }) : null,
      trials.slice(-MOST_MARKS).map((t) => dot(t, xs.place(t.values[0]), ys.place(t.values[1]), report.best.includes(t.number), trialTitle(report, t)))] });
  return chartPanel("Pareto front", `${report.metrics[1]}, ${report.directions[1]} is better`, image);
}

// ---- parallel coordinates ------------------------------------------------------------------

function parallelAxis(name, texts, values, top, bottom) {
  const numbers = values.filter(Number.isFinite);  // an objective may be NaN
  if (numbers.length) {
    const scale = makeScale(scaleKind(numbers), numbers, bottom, top);
    const ends = [...new Set([Math.min, Math.max].map((end) => numbers.reduce((a, b) => end(a, b))))];
    return { name, ends: ends.map((n) => [scale.place(n), tickText(n)]),
      place: (i) => (Number.isFinite(values[i]) ? scale.place(values[i]) : null) };
  }
  const names = [...new Set(texts.filter(Boolean))].sort();
  const place = (text) => (names.length < 2 ? (top + bottom) / 2 : bottom - (names.indexOf(text) / (names.length - 1)) * (bottom - top));
  return { name, ends: names.slice(0, 12).map((text) => [place(text), text.length > 18 ? `${text.slice(0, 17)}…` : text]), place: (i) => (texts[i] ? place(texts[i]) : null) };
}

function parallelChart(report) {
  const { columns, rows, objectives } = report.matrix;
  const [width, height, top, bottom] = [1180, 300, 34, 286];
  const axes = [...rows.slice(0, 9).map((row) => parallelAxis(row.path, row.texts, row.values, top, bottom)),
    ...objectives.slice(0, 2).map((one) => parallelAxis(one.name, [], one.values, top, bottom))];
  const x = (i) => 70 + (i / Math.max(1, axes.length - 1)) * (width - 190);
  const goodness = shades(objectives[0].values).map((v) => (v === null ? null : objectives[0].direction === "higher" ? v : 1 - v));
  const order = columns.map((_, i) => i).filter((i) => goodness[i] !== null).sort((a, b) => goodness[a] - goodness[b]);
  const lines = order.map((i) => {
    const points = axes.map((axis, a) => [x(a), axis.place(i)]).filter(([, y]) => y !== null);
    const line = svg("path", { class: report.best.includes(Number(columns[i].title)) ? "way best" : "way", "data-trial": columns[i].title,
      d: points.map(([px, py], k) => `${k ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("") }, svg("title", null, `trial ${columns[i].title}`));
    line.style.setProperty("--shade", `${Math.round(8 + 80 * goodness[i] ** 2)}%`);
    return line;
  });
  const label = `Parallel coordinates of ${plural(order.length, "trial")}: ${axes.map((axis) => axis.name).join(", ")}`;
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, lines,
    axes.map((axis, i) => [svg("line", { class: "axis", x1: x(i), x2: x(i), y1: top, y2: bottom }),
      svg("text", { class: "axis-name", x: x(i), y: 14, "text-anchor": i === 0 ? "start" : "middle" }, axisName(axis.name)),
      axis.ends.map(([y, text]) => svg("text", { class: "halo", x: x(i) + 6, y: y + 4 }, text))]));
  return chartPanel("Parallel coordinates", `${plural(order.length, "complete trial")}; the stronger the line, the better`, image, { size: "wide" });
}

/** The last parts of a long path. */
function axisName(name) {
  if (name.length <= 24) return name;
  const parts = name.split(".");
  while (parts.length > 1 && parts.join(".").length > 22) parts.shift();
  return `…${parts.join(".").slice(-22)}`;
}

// ---- slices over time ----------------------------------------------------------------------

/** Spans of one slice on as few lines as do not overlap. */
function stacked(spans) {
  const ends = [];
  return spans.map((span) => {
    let lane = ends.findIndex((end) => end <= span[2] + 1e-9);
    if (lane < 0) lane = ends.push(0) - 1;
    ends[lane] = span[3];
    return { span, lane };
  });
}

function secondsText(seconds) {
  if (seconds < 120) return `${significant(seconds, 3)} s`;
  if (seconds < 7200) return `${significant(seconds / 60, 3)} min`;
  return `${significant(seconds / 3600, 3)} h`;
}

function timelineChart(report) {
  const spans = report.spans.slice(-4000);
  const bands = report.slices.map((slice) => ({ slice, items: stacked(spans.filter((span) => span[1] === slice.index)) }));
  const lanes = bands.map((band) => Math.max(1, ...band.items.map((item) => item.lane + 1)));
  const thick = Math.max(6, Math.min(18, Math.floor(360 / lanes.reduce((a, b) => a + b, 1))));
  const [width, left] = [1180, 90];
  let at = 8;
  const tops = lanes.map((count) => { const top = at; at += count * thick + 8; return top; });
  const first = spans.reduce((a, span) => Math.min(a, span[2]), Infinity);
  const scale = makeScale("linear", [Number.isFinite(first) ? first : 0, report.seconds || 1], left, width - 12);
  const height = at + 26;
  const states = [...new Set(spans.map((span) => span[4]))].sort();
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(spans.length, "run")} of trials on ${plural(bands.length, "slice")} over ${secondsText(report.seconds)}` },
    scale.ticks(8).map((tick) => [svg("line", { class: "grid", x1: scale.place(tick), x2: scale.place(tick), y1: 4, y2: at }),
      svg("text", { x: scale.place(tick), y: at + 16, "text-anchor": "middle" }, secondsText(tick))]),
    bands.map((band, b) => [svg("text", { x: left - 8, y: tops[b] + Math.min(thick, 18) / 2 + 4, "text-anchor": "end" }, band.slice.name),
      band.items.map(({ span, lane }) => svg("rect", { class: `span state-${span[4]}`, "data-trial": span[0], x: scale.place(span[2]).toFixed(1), y: tops[b] + lane * thick,
        width: Math.max(1.2, scale.place(span[3]) - scale.place(span[2]) - 0.6).toFixed(1), height: thick - 2, rx: 2 },
      svg("title", null, `trial ${span[0]}: ${span[4]}, ${secondsText(span[3] - span[2])}`)))]));
  const legend = el("span", { class: "legend" }, states.map((state) => el("span", null, el("span", { class: `key state-${state}` }), state)));
  return chartPanel("Slices over time", "", image, { legend, size: "wide" });
}
