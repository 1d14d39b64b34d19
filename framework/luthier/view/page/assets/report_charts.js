// The charts of a study: curves, history, distribution, front, importance, slices, contours, parallel coordinates.
//
// Each is drawn for the width that it has, again whenever that changes, so that text keeps its size on a phone.

/** The most marks of each kind that are drawn: of more trials the best and others at even distances. */
const MOST = { history: 3000, front: 3000, slice: 800, contour: 800, parallel: 400, spans: 4000 };

const drawn = [];

/** A panel with a drawing; `draw(width)` returns what is in it, and its note may depend on what was drawn. */
function chartPanel(name, draw, { note = "", legend = null, size = "", controls = null, least = 0 } = {}) {
  const place = el("div", { class: least ? "drawing scroller" : "drawing", ...(least ? { tabindex: 0, role: "region", "aria-label": name } : {}) });
  const readout = el("p", { class: "readout", "aria-hidden": "true" });
  drawn.push({ place, draw, least, width: 0 });
  return el("figure", { class: `panel chart ${size}` },
    el("figcaption", null, el("span", { class: "name" }, name), controls, legend, note ? el("span", { class: "note" }, note) : null), place, readout);
}

/** Draw the charts whose width has changed, or all of them. */
function drawCharts(isForced) {
  for (const one of drawn) {
    const width = Math.max(one.least, Math.floor(one.place.clientWidth));
    if (!one.place.clientWidth || (!isForced && width === one.width)) continue;
    one.width = width;
    const found = one.draw(width);
    found.style.width = `${width}px`;
    one.place.replaceChildren(found);
  }
}

/** Some of many: those that count, and of the others as many as there is room for, at even distances. */
function sample(items, most, counts) {
  if (items.length <= most) return items;
  const first = new Set(items.filter(counts).slice(0, most / 2));
  const others = items.filter((item) => !first.has(item));
  const room = most - first.size;
  const chosen = new Set(Array.from({ length: room }, (_, i) => others[Math.floor((i * others.length) / room)]));
  return items.filter((item) => first.has(item) || chosen.has(item));
}

function drawnNote(shown, all, noun) {
  return shown < all ? `${shown.toLocaleString("en")} of ${plural(all, noun)} drawn` : "";
}

/** The trials that have a finite final value of an objective: pruned ones have none, theirs are of an early step. */
function withValue(trials, index) {
  return trials.filter((t) => t.state === "complete" && t.values && Number.isFinite(t.values[index]));
}

function isBest(report, trial) {
  return report.best.includes(trial.number);
}

function dot(report, trial, x, y, name = "dot") {
  const best = isBest(report, trial);
  return svg("circle", { class: best ? `${name} best` : name, cx: x.toFixed(1), cy: y.toFixed(1), r: best ? 5 : 3.2, "data-trial": trial.number });
}

function trialTitle(report, trial) {
  const values = (trial.values || []).map((v, i) => `${report.metrics[i]} ${formatNumber(v)}`).join(", ");
  return [`trial ${trial.number}`, trial.state === "complete" ? null : trial.state, values || null, shortened(trial.words)].filter(Boolean).join(": ");
}

/** A text whose long numbers are cut to what people compare. */
function shortened(text) {
  return text.replace(/-?\d+\.\d{5,}(e[-+]?\d+)?/g, (number) => significant(Number(number), 4));
}

/** The last parts of a long path. */
function axisName(name, most = 24) {
  if (name.length <= most) return name;
  const parts = name.split(".");
  while (parts.length > 1 && parts.join(".").length > most - 2) parts.shift();
  return `…${parts.join(".").slice(2 - most)}`;
}

function wholeTick(value) {
  return Number.isInteger(value) ? tickText(value) : "";
}

// ---- axes ----------------------------------------------------------------------------------

/** The axis of an objective: logarithmic where that is switched on and can be. */
function objectiveAxis(values, isLog) {
  return { kind: isLog && values.every((v) => !Number.isFinite(v) || v > 0) ? "log" : "linear", numbers: values };
}

/** The axis of a dimension, by its own scale; options of a category are at even distances, in their order. */
function dimensionAxis(dimension, most = 14) {
  if (dimension.scale !== "category") return { kind: dimension.scale, numbers: dimension.values.filter(Number.isFinite) };
  const { labels } = dimension;
  const text = (label) => { const bare = short(label, null); return bare.length > most ? `${bare.slice(0, most - 1)}…` : bare; };
  return {
    format: (i) => text(labels[i] ?? ""),
    make: (from, to) => {
      const place = (i) => from + ((i + 0.5) / labels.length) * (to - from);
      const ticks = (count) => { const stride = Math.ceil(labels.length / Math.max(1, count)); return labels.map((_, i) => i).filter((i) => i % stride === 0); };
      return { kind: "category", low: -0.5, high: labels.length - 0.5, place, ticks };
    },
  };
}

/** A number between -0.5 and 0.5 that belongs to a trial: points of one option are set apart by it. */
function jitter(trial) {
  return ((trial.number * 0.618034) % 1) - 0.5;
}

function placeOn(scale, dimension, trial) {
  const value = dimension.values[trial.number];
  if (dimension.scale !== "category") return scale.place(value);
  return scale.place(value + jitter(trial) * 0.5);
}

// ---- learning curves -----------------------------------------------------------------------

function curvesChart(report, options) {
  const { rows, reported, rungs } = report.curves;
  const lines = rows.map(([number, steps, values]) => ({ trial: report.trials[number], points: steps.map((step, i) => [step, values[i]]) }));
  // The best are drawn last, over the others.
  lines.sort((a, b) => isBest(report, a.trial) - isBest(report, b.trial));
  const all = lines.flatMap((line) => line.points);
  const name = report.metrics[0];
  const states = [...new Set(lines.map((line) => line.trial.state))].sort();
  const draw = (width) => {
    let scales = null;
    const mark = svg("circle", { class: "curve-mark", r: 4, visibility: "hidden" });
    const image = drawing({
      label: `Learning curves of ${plural(lines.length, "trial")}: ${name} by step`, width, height: width < 600 ? 240 : 300, ticks: Math.floor(width / 80),
      x: { numbers: [0, ...all.map((p) => p[0])], format: wholeTick }, y: objectiveAxis(all.map((p) => p[1]), options.isLog), xLabel: "step",
      draw: (xs, ys, box) => {
        scales = { xs, ys, box };
        // Where lengths differ, the rungs of trials are at many steps, and no line stands for them.
        const isFew = rungs.flatMap(([, steps]) => steps).length <= 12;
        return [
          isFew ? rungs.map(([rung, steps]) => steps.map((step) => [
            svg("line", { class: "rung", x1: xs.place(step), x2: xs.place(step), y1: box.top, y2: box.bottom }),
            svg("text", { class: "halo", x: xs.place(step) + 3, y: box.top + 10 + ((rung - 1) % 4) * 13 }, `rung ${rung}`)])) : null,
          lines.map((line) => {
            const path = svg("path", { class: `curve state-${line.trial.state}${isBest(report, line.trial) ? " best" : ""}`, d: linePath(line.points, xs, ys), "data-trial": line.trial.number });
            // A mark at the end of a trial that ended early; and of one with a single point, which has no line.
            const last = line.points.filter(isPoint(xs, ys)).at(-1);
            const hasEnd = last && (line.points.length === 1 || line.trial.state !== "complete");
            return [path, hasEnd ? svg("circle", { class: `curve-end state-${line.trial.state}`, cx: xs.place(last[0]).toFixed(1), cy: ys.place(last[1]).toFixed(1), r: 2.2, "data-trial": line.trial.number }) : null];
          }), mark];
      },
    });
    const nearest = (event) => {
      const frame = image.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      const good = isPoint(scales.xs, scales.ys);
      let [found, distance] = [null, Infinity];
      for (const line of lines) {
        for (const point of line.points) {
          if (!good(point)) continue;
          const to = (scales.xs.place(point[0]) - x) ** 2 + (scales.ys.place(point[1]) - y) ** 2;
          if (to < distance) [found, distance] = [{ line, point }, to];
        }
      }
      return found;
    };
    image.addEventListener("pointermove", (event) => {
      const found = nearest(event);
      if (!found) return;
      const { line: { trial }, point } = found;
      mark.setAttribute("visibility", "visible");
      mark.setAttribute("cx", scales.xs.place(point[0]));
      mark.setAttribute("cy", scales.ys.place(point[1]));
      light(trial.number);
      readOut(image, `trial ${trial.number} (${trial.state}), step ${point[0].toLocaleString("en")}: ${significant(point[1], 6)}; ${shortened(trial.words)}`);
    });
    image.addEventListener("pointerleave", () => mark.setAttribute("visibility", "hidden"));
    return image;
  };
  const legend = el("span", { class: "legend" }, states.map((state) => el("span", null, el("span", { class: `key state-${state}` }), state)),
    report.best.length ? el("span", { class: "best-key" }, el("span", { class: "key" }), report.best.length === 1 ? "best" : "front") : null);
  return chartPanel(`Learning curves of ${name}`, draw, { legend, note: drawnNote(lines.length, reported, "trial"), size: "wide" });
}

// ---- history, distribution, front -----------------------------------------------------------

function historyChart(report, index, options) {
  const trials = withValue(report.trials, index);
  const isLower = report.directions[index] === "lower";
  const values = trials.map((t) => t.values[index]);
  const marks = sample(trials, MOST.history, (t) => isBest(report, t));
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
  const last = Math.max(report.trials.length - 1, 1);
  if (steps.length) steps.push([last, best]);
  const name = report.metrics[index];
  const label = `${name} of ${plural(trials.length, "complete trial")} in their order; best ${best === null ? "none" : formatNumber(best)}`;
  const draw = (width) => drawing({ label, width, ticks: Math.floor(width / 80), x: { numbers: [0, last], format: wholeTick }, y: objectiveAxis(values, options.isLog), xLabel: "trial",
    draw: (xs, ys) => [svg("path", { class: "line best-line", d: linePath(steps, xs, ys) }),
      marks.map((t) => dot(report, t, xs.place(t.number), ys.place(t.values[index])))] });
  const legend = el("span", { class: "legend" }, el("span", { class: "dots" }, "trial"),
    el("span", { class: "best-key" }, el("span", { class: "key" }), `best so far, ${isLower ? "lower" : "higher"} is better`));
  return chartPanel(`History of ${name}`, draw, { legend, note: drawnNote(marks.length, trials.length, "trial") });
}

/** The share of complete trials whose value is at least as low: a study that finds good settings rises early. */
function distributionChart(report, index, options) {
  const values = withValue(report.trials, index).map((t) => t.values[index]).sort((a, b) => a - b);
  const points = values.flatMap((value, i) => [[value, i / values.length], [value, (i + 1) / values.length]]);
  const name = report.metrics[index];
  const draw = (width) => drawing({ label: `Distribution of ${name}: ${plural(values.length, "complete trial")}, median ${formatNumber(values[Math.floor(values.length / 2)])}`, width,
    ticks: Math.floor(width / 80), x: objectiveAxis(values, options.isLog), y: { numbers: [0, 1] }, xLabel: name,
    draw: (xs, ys) => svg("path", { class: "line share-line", d: linePath(thinnedSteps(points, 1200), xs, ys) }) });
  return chartPanel(`Distribution of ${name}`, draw, { note: "share of complete trials up to a value (EDF)" });
}

/** Fewer points of a line that only rises. */
function thinnedSteps(points, most) {
  if (points.length <= most) return points;
  const stride = Math.ceil(points.length / most);
  return points.filter((_, i) => i % stride === 0 || i === points.length - 1);
}

/** The border between what is beaten and what is not, as a step through the points of the front. */
function frontSteps(points, directions) {
  const sorted = [...points].sort((a, b) => (directions[0] === "lower" ? a[0] - b[0] : b[0] - a[0]));
  return sorted.flatMap(([x, y], i) => (i ? [[x, sorted[i - 1][1]], [x, y]] : [[x, y]]));
}

function paretoChart(report, pair) {
  const [a, b] = pair;
  const trials = report.trials.filter((t) => t.state === "complete" && t.values && pair.every((i) => Number.isFinite(t.values[i])));
  const front = trials.filter((t) => isBest(report, t)).map((t) => pair.map((i) => t.values[i]));
  const marks = sample(trials, MOST.front, (t) => isBest(report, t));
  const label = `${report.metrics[b]} over ${report.metrics[a]}; ${plural(front.length, "trial")} on the Pareto front`;
  const draw = (width) => drawing({ label, width, ticks: Math.floor(width / 80), xLabel: `${report.metrics[a]} (${report.directions[a]} is better)`,
    x: { numbers: trials.map((t) => t.values[a]) }, y: { numbers: trials.map((t) => t.values[b]) },
    // With three objectives and more, the front has no line in the plane of two of them.
    draw: (xs, ys) => [report.metrics.length === 2 ? svg("path", { class: "line best-line", d: linePath(frontSteps(front, pair.map((i) => report.directions[i])), xs, ys) }) : null,
      marks.map((t) => dot(report, t, xs.place(t.values[a]), ys.place(t.values[b])))] });
  return chartPanel(report.metrics.length === 2 ? "Pareto front" : `Pareto front: ${report.metrics[b]} over ${report.metrics[a]}`, draw,
    { note: `${report.metrics[b]}, ${report.directions[b]} is better`, legend: drawnNote(marks.length, trials.length, "trial") });
}

// ---- importance ----------------------------------------------------------------------------

function importanceChart(report, index) {
  const { of, settings, fewest } = report.importance;
  const panel = (name, ...inside) => el("figure", { class: "panel chart" }, el("figcaption", null, el("span", { class: "name" }, name), inside[0]), inside.slice(1));
  if (settings < fewest) return panel("Importance", null, el("p", { class: "muted" }, `${plural(fewest, "complete setting")} are needed; there are ${settings}.`));
  // With several objectives, the first entry is of the front; that of an objective comes after it.
  const found = of[of.length > 1 ? index + 1 : 0];
  const name = `Importance for ${found.name}`;
  if (!found.rows.length) return panel(name, null, el("p", { class: "muted" }, "Nothing varied among the complete settings."));
  const rough = settings < 50 ? ", a rough guess" : "";
  const bars = (rows, label) => el("ul", { class: "shares", "aria-label": label },
    rows.slice(0, 10).map((row) => el("li", null, el("span", { class: "mono" }, row.path), " ", el("span", { class: "number" }, `${(row.share * 100).toFixed(0)} %`),
      svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "bar-track", x: 0, y: 0, width: 100, height: 6 }), svg("rect", { class: "bar", x: 0, y: 0, width: row.share * 100, height: 6 })))));
  return panel(name, el("span", { class: "note" }, `PED-ANOVA of ${plural(settings, "setting")}${rough}`), bars(found.rows, name),
    of.length > 1 ? [el("p", { class: "muted" }, "For the Pareto front"), bars(of[0].rows, "Importance for the Pareto front")] : null);
}

/** The dimensions with values, the most important first. */
function rankedDimensions(report, index) {
  const { of } = report.importance;
  const shares = new Map((of[of.length > 1 ? index + 1 : 0]?.rows || []).map((row) => [row.path, row.share]));
  const found = report.dimensions.filter((one) => new Set(one.values.filter((v) => v !== null)).size > 1);
  return found.sort((a, b) => (shares.get(b.name) ?? -1) - (shares.get(a.name) ?? -1));
}

// ---- one dimension, two dimensions -----------------------------------------------------------

function sliceChart(report, dimension, index, options) {
  const trials = withValue(report.trials, index).filter((t) => dimension.values[t.number] !== null);
  const marks = sample(trials, MOST.slice, (t) => isBest(report, t));
  const name = report.metrics[index];
  const draw = (width) => drawing({ label: `${name} by ${dimension.name}: ${plural(trials.length, "complete trial")}`, width, height: 200, ticks: Math.floor(width / (dimension.scale === "category" ? 100 : 70)),
    x: dimensionAxis(dimension), y: objectiveAxis(trials.map((t) => t.values[index]), options.isLog), xLabel: dimension.scale === "log" ? "log scale" : "",
    draw: (xs, ys) => marks.map((t) => {
      const mark = dot(report, t, placeOn(xs, dimension, t), ys.place(t.values[index]), "dot by-age");
      // As in Optuna's plot: the later, the darker, which shows where a sampler went.
      mark.style.setProperty("--shade", `${Math.round(25 + (75 * t.number) / Math.max(1, report.trials.length - 1))}%`);
      return mark;
    }) });
  return chartPanel(axisName(dimension.name, 40), draw, { note: [`${name}; the later, the stronger`, drawnNote(marks.length, trials.length, "trial")].filter(Boolean).join("; ") });
}

const LEVELS = 9;

/** Values between the points of trials: their mean, weighted by the inverse square of the distance (Shepard). */
function interpolated(points, x, y) {
  let [sum, weights] = [0, 0];
  for (const [px, py, value] of points) {
    const weight = 1 / ((px - x) ** 2 + (py - y) ** 2 + 1e-4) ** 1.5;
    sum += weight * value;
    weights += weight;
  }
  return sum / weights;
}

function contourChart(report, dimensions, index, options, pair, onPair) {
  const [first, second] = pair.map((name) => dimensions.find((one) => one.name === name));
  const trials = withValue(report.trials, index).filter((t) => first.values[t.number] !== null && second.values[t.number] !== null);
  const marks = sample(trials, MOST.contour, (t) => isBest(report, t));
  const name = report.metrics[index];
  const values = marks.map((t) => t.values[index]);
  const isLog = objectiveAxis(values, options.isLog).kind === "log";
  const heights = makeScale(isLog ? "log" : "linear", values, 0, 1);
  // The better, the stronger, as in the other charts.
  const isLower = report.directions[index] === "lower";
  const shade = (node, level) => { node.style.setProperty("--shade", `${Math.round(((isLower ? LEVELS - 1 - level : level) / (LEVELS - 1)) * 100)}%`); return node; };
  const draw = (width) => drawing({ label: `${name} over ${first.name} and ${second.name}: ${plural(trials.length, "complete trial")}`, width, height: Math.min(420, Math.max(260, width * 0.6)), left: second.scale === "category" ? 96 : 52,
    ticks: Math.floor(width / (first.scale === "category" ? 100 : 70)), x: dimensionAxis(first), y: dimensionAxis(second, 13), xLabel: axisName(first.name, 40),
    draw: (xs, ys, box) => {
      const [wide, high] = [box.right - box.left, box.bottom - box.top];
      const points = marks.map((t) => [(xs.place(first.values[t.number]) - box.left) / wide, (ys.place(second.values[t.number]) - box.top) / high, heights.place(t.values[index])]);
      const [columns, rows] = [44, 30];
      const cells = [];
      for (let row = 0; points.length && row < rows; row += 1) {
        let [begin, level] = [0, -1];
        for (let column = 0; column <= columns; column += 1) {
          const next = column === columns ? -1 : Math.min(LEVELS - 1, Math.floor(interpolated(points, (column + 0.5) / columns, (row + 0.5) / rows) * LEVELS));
          if (next === level) continue;
          if (level >= 0) cells.push(shade(svg("rect", { class: "level", x: (box.left + (begin / columns) * wide).toFixed(1), y: (box.top + (row / rows) * high).toFixed(1), width: (((column - begin) / columns) * wide + 0.4).toFixed(1), height: (high / rows + 0.4).toFixed(1) }), level));
          [begin, level] = [column, next];
        }
      }
      return [cells, marks.map((t) => dot(report, t, placeOn(xs, first, t), placeOn(ys, second, t), "dot over"))];
    } });
  const select = (at, label) => el("label", { class: "choice" }, label, " ", el("select", { "aria-label": `Dimension on the ${label} axis`, onchange: (event) => onPair(at, event.target.value) },
    dimensions.map((one) => el("option", { value: one.name, selected: one.name === pair[at] }, axisName(one.name, 30)))));
  const legend = el("span", { class: "legend" }, el("span", null, significant(heights.low, 3)),
    el("span", { class: "levels" }, Array.from({ length: LEVELS }, (_, level) => shade(el("span", { class: "level-key" }), level))), el("span", null, significant(heights.high, 3)));
  return chartPanel(`${name} over two dimensions`, draw, { legend, size: "wide", controls: el("span", { class: "choices no-print" }, select(0, "x"), select(1, "y")),
    note: ["interpolated between trials", drawnNote(marks.length, trials.length, "trial")].filter(Boolean).join("; ") });
}

// ---- parallel coordinates ------------------------------------------------------------------

function parallelChart(report, index, options) {
  const [top, bottom] = [34, 286];
  const dimensions = rankedDimensions(report, index).slice(0, 10);
  const trials = withValue(report.trials, index);
  const shown = sample(trials, MOST.parallel, (t) => isBest(report, t));
  const axes = [
    ...dimensions.map((dimension) => ({ name: dimension.name, axis: dimensionAxis(dimension), value: (t) => dimension.values[t.number] })),
    ...report.metrics.map((name, i) => ({ name, axis: objectiveAxis(trials.map((t) => t.values[i]), options.isLog), value: (t) => (Number.isFinite(t.values[i]) ? t.values[i] : null) })),
  ].map(({ axis, ...rest }) => ({ ...rest, format: axis.format || tickText, scale: axis.make ? axis.make(bottom, top) : makeScale(axis.kind, axis.numbers, bottom, top) }));
  const isLower = report.directions[index] === "lower";
  const goodness = shades(trials.map((t) => t.values[index]));
  const good = new Map(trials.map((t, i) => [t.number, isLower ? 1 - goodness[i] : goodness[i]]));
  const draw = (width) => {
    const x = (i) => 14 + (i / Math.max(1, axes.length - 1)) * (width - 96);
    const lines = [...shown].sort((a, b) => isBest(report, a) - isBest(report, b) || good.get(a.number) - good.get(b.number)).map((t) => {
      const points = axes.map((axis, i) => [x(i), axis.value(t) === null ? null : axis.scale.place(axis.value(t))]).filter(([, y]) => y !== null);
      const line = svg("path", { class: isBest(report, t) ? "way best" : "way", "data-trial": t.number, d: points.map(([px, py], k) => `${k ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("") });
      line.style.setProperty("--shade", `${Math.round(8 + 80 * good.get(t.number) ** 2)}%`);
      return line;
    });
    const label = `Parallel coordinates of ${plural(shown.length, "complete trial")}: ${axes.map((axis) => axis.name).join(", ")}`;
    const room = Math.max(8, Math.floor((width - 96) / Math.max(1, axes.length - 1) / 6.4));
    return svg("svg", { viewBox: `0 0 ${width} 300`, role: "img", "aria-label": label }, lines,
      axes.map((axis, i) => [svg("line", { class: "axis", x1: x(i), x2: x(i), y1: top, y2: bottom }),
        svg("text", { class: "axis-name", x: i === axes.length - 1 ? x(i) + 74 : x(i) - 10, y: i % 2 ? 12 : 26, "text-anchor": i === axes.length - 1 ? "end" : "start" }, axisName(axis.name, Math.min(30, 2 * room - 2))),
        axis.scale.ticks(5).map((tick) => [svg("line", { class: "axis", x1: x(i) - 3, x2: x(i) + 3, y1: axis.scale.place(tick), y2: axis.scale.place(tick) }),
          svg("text", { class: "halo", x: x(i) + 6, y: axis.scale.place(tick) + 4 }, axis.format(tick))])]));
  };
  return chartPanel("Parallel coordinates", draw, { size: "wide", least: 110 * axes.length,
    note: [`the stronger the line, the better ${report.metrics[index]}`, drawnNote(shown.length, trials.length, "complete trial")].filter(Boolean).join("; ") });
}

// ---- device groups over time -----------------------------------------------------------------

/** Spans of one device group on as few lines as do not overlap. */
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
  const spans = report.spans.slice(-MOST.spans);
  const bands = report.slices.map((slice) => ({ slice, items: stacked(spans.filter((span) => span[1] === slice.index)) }));
  const lanes = bands.map((band) => Math.max(1, ...band.items.map((item) => item.lane + 1)));
  const thick = Math.max(6, Math.min(18, Math.floor(360 / lanes.reduce((a, b) => a + b, 1))));
  let at = 8;
  const tops = lanes.map((count) => { const top = at; at += Math.max(count * thick, 14) + 8; return top; });
  const height = at + 26;
  const states = [...new Set(spans.map((span) => span[4]))].sort();
  const draw = (width) => {
    const left = 90;
    const first = spans.reduce((a, span) => Math.min(a, span[2]), Infinity);
    const scale = makeScale("linear", [Number.isFinite(first) ? first : 0, report.seconds || 1], left, width - 12);
    const [unit, unitName] = report.seconds < 120 ? [1, "s"] : report.seconds < 7200 ? [60, "min"] : [3600, "h"];
    const ticks = linearTicks(scale.low / unit, scale.high / unit, Math.max(3, Math.floor((width - left) / 90)));
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(spans.length, "run")} of trials on ${plural(bands.length, "device group")} over ${secondsText(report.seconds)}` },
      ticks.map((tick) => [svg("line", { class: "grid", x1: scale.place(tick * unit), x2: scale.place(tick * unit), y1: 4, y2: at }),
        svg("text", { x: scale.place(tick * unit), y: at + 16, "text-anchor": "middle" }, `${tickText(tick)} ${unitName}`)]),
      bands.map((band, b) => [svg("text", { x: left - 8, y: tops[b] + Math.min(thick, 18) / 2 + 4, "text-anchor": "end" }, axisName(band.slice.name, 13)),
        band.items.map(({ span, lane }) => svg("rect", { class: `span state-${span[4]}`, "data-trial": span[0], "data-note": `trial ${span[0]}: ${span[4]}, ${secondsText(span[3] - span[2])}`,
          x: scale.place(span[2]).toFixed(1), y: tops[b] + lane * thick, width: Math.max(1.2, scale.place(span[3]) - scale.place(span[2]) - 0.6).toFixed(1), height: thick - 2, rx: 2 }))]));
  };
  const legend = el("span", { class: "legend" }, states.map((state) => el("span", null, el("span", { class: `key state-${state}` }), state)));
  return chartPanel("Device groups over time", draw, { legend, note: spans.length < report.spans.length ? `the last ${plural(spans.length, "run")} of ${report.spans.length.toLocaleString("en")}` : "", size: "wide" });
}
