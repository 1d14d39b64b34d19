// Charts as SVG: scales, axes, lines and points.

/** A scale from numbers to places; `kind` is `linear` or `log`. */
function makeScale(kind, numbers, from, to) {
  const usable = numbers.filter((n) => Number.isFinite(n) && (kind !== "log" || n > 0));
  let low = usable.reduce((a, b) => Math.min(a, b), Infinity);
  let high = usable.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!usable.length) [low, high] = kind === "log" ? [1, 10] : [0, 1];
  if (low === high) {
    [low, high] = kind === "log" ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  }
  const warp = kind === "log" ? Math.log10 : (n) => n;
  const [a, b] = [warp(low), warp(high)];
  const place = (n) => from + ((warp(n) - a) / (b - a)) * (to - from);
  return { kind, low, high, place, ticks: (count) => (kind === "log" ? logTicks(low, high, count) : linearTicks(low, high, count)) };
}

function linearTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high, count) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  if (last - first >= 1) {
    // Between few powers of ten there is room for their doubles and fives.
    const between = [];
    for (let power = first - 1; power <= last; power += 1) between.push(...[1, 2, 5].map((m) => Number(`${m}e${power}`)));
    const inside = between.filter((n) => n >= low * (1 - 1e-9) && n <= high * (1 + 1e-9));
    if (inside.length <= count + 1) return inside;
    const stride = Math.ceil((last - first + 1) / count);
    return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, i) => Number(`1e${first + i * stride}`));
  }
  return linearTicks(low, high, count);
}

function tickText(value) {
  return Math.abs(value) >= 1e4 ? formatNumber(value).replace(/\.0+$/, "") : significant(value, 3);
}

/** The empty drawing of a chart with its axes; `draw(x, y, box)` returns what is drawn in it.
 *
 * An axis has `numbers` and a `kind` of scale, or makes its own scale by `make(from, to)`.
 */
function drawing({ label, width = 440, height = 220, left = 52, bottom = 34, ticks = 6, x, y, xLabel, draw }) {
  const box = { left, right: width - 12, top: 10, bottom: height - bottom, width, height };
  const xs = x.make ? x.make(box.left, box.right) : makeScale(x.kind || "linear", x.numbers, box.left, box.right);
  const ys = y.make ? y.make(box.bottom, box.top) : makeScale(y.kind || "linear", y.numbers, box.bottom, box.top);
  const grid = ys.ticks(4).map((tick) => [
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: ys.place(tick), y2: ys.place(tick) }),
    svg("text", { x: box.left - 7, y: ys.place(tick) + 4, "text-anchor": "end" }, y.format ? y.format(tick) : tickText(tick)),
  ]);
  const below = xs.ticks(ticks).map((tick) =>
    svg("text", { x: xs.place(tick), y: box.bottom + 15, "text-anchor": "middle" }, x.format ? x.format(tick) : tickText(tick)));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    grid, svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }), below,
    xLabel ? svg("text", { x: box.right, y: height - 3, "text-anchor": "end" }, xLabel) : null,
    draw(xs, ys, box));
}

function isPoint(scaleX, scaleY) {
  return ([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (scaleY.kind !== "log" || y > 0) && (scaleX.kind !== "log" || x > 0);
}

/** The path through points; one that cannot be drawn (NaN, or not positive on a log scale) breaks it. */
function linePath(points, xs, ys) {
  const good = isPoint(xs, ys);
  let pen = "M";
  return points.map((point) => {
    if (!good(point)) { pen = "M"; return ""; }
    const step = `${pen}${xs.place(point[0]).toFixed(1)} ${ys.place(point[1]).toFixed(1)}`;
    pen = "L";
    return step;
  }).join("");
}

/** Fewer points of the same look: the lowest and the highest of each stretch. */
function thinned(points, most = 600) {
  if (points.length <= most) return points;
  const stride = Math.ceil(points.length / (most / 2));
  const found = [];
  for (let i = 0; i < points.length; i += stride) {
    const part = points.slice(i, i + stride).filter((p) => Number.isFinite(p[1]));
    if (!part.length) { found.push(points[i]); continue; }
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    found.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return found;
}

const DASHES = [null, "6 4", "2 3", "8 3 2 3"];

/** Lines of two sides over one another, with a readout under the pointer. */
function lineChart({ title, x_label, y_label, log_y, series }) {
  const names = [...new Set(series.map((one) => one.name))];
  const lines = series.map((one) => ({ ...one, points: thinned(one.points), dash: DASHES[names.indexOf(one.name) % DASHES.length] }));
  const all = lines.flatMap((one) => one.points);
  const readout = el("p", { class: "readout", "aria-hidden": "true" });
  const sides = ["A", "B"];
  const label = `${title}. ${lines.map((one) => `${sides[one.side]} ${one.name}: ${summaryOf(one.points)}`).join("; ")}`;
  let scales = null;
  const cursor = svg("line", { class: "cursor", y1: 0, y2: 0, visibility: "hidden" });
  const image = drawing({
    label, x: { numbers: all.map((p) => p[0]) }, y: { kind: log_y ? "log" : "linear", numbers: all.map((p) => p[1]) }, xLabel: x_label,
    draw: (xs, ys, box) => {
      scales = { xs, box };
      cursor.setAttribute("y1", box.top);
      cursor.setAttribute("y2", box.bottom);
      return [...lines.map((one) =>
        svg("path", { class: `line stroke-${one.side}`, d: linePath(one.points, xs, ys), "stroke-dasharray": one.dash })), cursor];
    },
  });
  image.addEventListener("pointermove", (event) => {
    const frame = image.getBoundingClientRect();
    const { xs, box } = scales;
    const at = ((event.clientX - frame.left) / frame.width) * box.width;
    const x = xs.low + ((at - box.left) / (box.right - box.left)) * (xs.high - xs.low);
    const near = lines.map((one) => nearestPoint(one.points, x)).filter(Boolean);
    if (!near.length) return;
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", xs.place(near[0][0]));
    cursor.setAttribute("x2", xs.place(near[0][0]));
    readout.replaceChildren(`${x_label} ${significant(near[0][0], 5)}`, ...lines.flatMap((one) => {
      const point = nearestPoint(one.points, x);
      return point ? ["  ", el("span", { class: `side-${one.side}` }, `${sides[one.side]} ${significant(point[1], 4)}`)] : [];
    }));
  });
  image.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.replaceChildren();
  });
  return el("figure", { class: "panel chart" },
    el("figcaption", null, el("span", { class: "name" }, title, y_label && y_label !== title ? el("span", { class: "muted" }, ` ${y_label}`) : null),
      el("span", { class: "legend" }, lines.map((one) =>
        el("span", { class: `side-${one.side}` }, el("span", { class: "key" }), `${sides[one.side]}${names.length > 1 || one.name !== title ? ` ${one.name}` : ""}`)))),
    image, readout);
}

function nearestPoint(points, x) {
  let best = null;
  for (const point of points) {
    if (Number.isFinite(point[1]) && (best === null || Math.abs(point[0] - x) < Math.abs(best[0] - x))) best = point;
  }
  return best;
}

function summaryOf(points) {
  const values = points.map((p) => p[1]).filter(Number.isFinite);
  if (!values.length) return "no values";
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return `${plural(values.length, "point")}, from ${significant(low, 4)} to ${significant(high, 4)}, last ${significant(values.at(-1), 4)}`;
}
