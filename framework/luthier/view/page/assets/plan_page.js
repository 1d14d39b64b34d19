// The page of a plan.

const written = readData();
const plan = { ...written, ...written.subject, ...written.memory };
const bytes = (value) => formatNumber(value, "bytes");

function secondsText(seconds) {
  const units = [[86400 * 2, 86400, "days"], [7200, 3600, "h"], [120, 60, "min"], [1, 1, "s"]];
  for (const [least, size, unit] of units) if (seconds >= least) return `${significant(seconds / size, 3)} ${unit}`;
  return `${significant(seconds * 1000, 3)} ms`;
}

function tile(name, value, note) {
  return el("div", { class: "panel tile" }, el("dt", { class: "muted" }, name), el("dd", null, value), note ? el("dd", { class: "muted note" }, note) : null);
}

function section(id, title, children, note) {
  return el("section", { class: "section", id, "aria-labelledby": `${id}-title` },
    el("header", null, el("h2", { id: `${id}-title` }, title), note ? el("span", { class: "muted" }, note) : null), children);
}

/** A table; columns whose head ends with "#" hold numbers. */
function listing(caption, heads, rows) {
  const isNumber = heads.map((head) => head.endsWith("#"));
  const cell = (tag, value, i) => el(tag, { class: isNumber[i] ? "number" : null }, value);
  return el("div", { class: "panel scroller", tabindex: 0, role: "region", "aria-label": caption }, el("table", { class: "plain" },
    el("caption", { class: "visually-hidden" }, caption),
    el("thead", null, el("tr", null, heads.map((head, i) => el("th", { scope: "col", class: isNumber[i] ? "number" : null }, head.replace("#", ""))))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((value, i) => cell("td", value, i)))))));
}

function tiles() {
  const step = plan.step;
  const isEstimated = plan.needed_bytes !== null && plan.needed_bytes === plan.estimated_bytes;
  const verdict = (plan.fits === null ? "–" : plan.fits ? "fits" : "does not fit") + (isEstimated ? " by estimate" : "");
  // The time of matrix products is a lower bound; for bytes, the compiled program gives only an upper bound.
  const [least, most] = step.is_bound ? ["≥", "≤"] : ["≈", "≈"];
  const limit = plan.limit_bytes === null ? "no limit is known" : `of ${bytes(plan.limit_bytes)} on each device${plan.limit_reason ? ` (${plan.limit_reason})` : ""}`;
  return el("dl", { class: "tiles" },
    tile("Memory", plan.needed_bytes === null ? verdict : bytes(plan.needed_bytes), `${verdict}, ${limit}`),
    tile("Parameters", formatNumber(plan.parameters.total), plan.parameters.active === plan.parameters.total ? "all for each token" : `${formatNumber(plan.parameters.active)} for each token`),
    step.step_seconds ? tile("A step", `${least} ${secondsText(step.step_seconds)}`, `bound by ${step.binding}`) : step.reason ? tile("A step", "–", step.reason) : null,
    step.step_seconds ? tile("MFU", `${most} ${significant(step.mfu.full * 100, 3)} %`, plan.has_attention === false ? "3 × forward" : "3 × forward, full attention") : null,
    step.run_seconds ? tile("The run", `${least} ${secondsText(step.run_seconds)}`, `${formatNumber(plan.steps)} steps, ${most} ${formatNumber(step.tokens_per_day)} tokens a day`) : null);
}

function memorySection() {
  const parts = Object.entries(plan.bytes_per_device).sort((a, b) => b[1] - a[1]);
  const sum = parts.reduce((all, [, size]) => all + size, 0);
  const whole = Math.max(sum, plan.needed_bytes || 0, plan.limit_bytes || 0, 1);
  const scale = (size) => (size / whole) * 1000;
  let at = 0;
  const bars = parts.map(([kind, size], i) => {
    const bar = svg("rect", { class: `part-${Math.min(i, 5)}`, x: scale(at), y: 0, width: scale(size), height: 28 }, svg("title", null, `${kind}: ${bytes(size)}`));
    at += size;
    return bar;
  });
  const image = svg("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none", role: "img", "aria-label": `Memory of a device: ${parts.map(([kind, size]) => `${kind} ${bytes(size)}`).join(", ")}` },
    svg("rect", { class: "track", x: 0, y: 0, width: 1000, height: 28 }), bars,
    plan.limit_bytes ? svg("line", { class: "limit", x1: scale(plan.limit_bytes), x2: scale(plan.limit_bytes), y1: 0, y2: 28 }) : null);
  return section("memory", "Memory of a device", [
    el("div", { class: "panel memory" }, image,
      el("ul", { class: "keys" }, parts.map(([kind, size], i) => el("li", { class: `key part-${Math.min(i, 5)}` }, el("span", { class: "words" }, `${kind} ${bytes(size)}`))))),
    plan.residuals.length ? listing("Long-lived temporaries by the analytic model", ["arrays, which do not add up to the peak", "bytes on a device#"], [["gradients", bytes(plan.gradient_bytes)], ...plan.residuals.map((r) => [`kept for the backward pass: ${r.name}`, bytes(r.bytes_per_device)])]) : null,
    plan.live.length ? listing("Largest arrays at the peak", ["largest arrays at the peak", "bytes on a device#", "made at"], plan.live.map((t) => [el("code", null, t.array), bytes(t.bytes_per_device), t.scope || t.opcode])) : null],
    plan.limit_bytes ? `the line is the limit, ${bytes(plan.limit_bytes)}` : null);
}

function proposalsSection() {
  return section("proposals", plan.fits === false ? "Changes that fit" : "Other shardings", plan.proposals.map((one) => {
    const words = one.overrides.join(" ");
    return el("div", { class: "panel proposal" },
      el("span", null, `${bytes(one.needed_bytes)}${one.step_seconds ? `, ${secondsText(one.step_seconds)} a step` : ""}, ${one.is_compiled ? "compiled" : "estimated"}`),
      el("button", { class: "bare no-print", type: "button", "aria-label": `Copy ${words}`, onclick: () => copyText(one.overrides.map(shellQuote).join(" "), "Overrides copied") }, "Copy"),
      el("code", null, words));
  }), "the fastest first");
}

function workSection() {
  const names = { full: "3 × forward, attention over all pairs", causal: "the same, causal attention halved", six_n: "6 × active parameters × tokens", hardware: "as it is run" };
  if (plan.has_attention === false) names.full = "3 × forward";
  const flops = Object.entries(plan.flops).filter(([name]) => plan.has_attention !== false || name === "full" || name === "hardware").map(([name, n]) => [names[name], formatNumber(n), formatNumber(n / plan.tokens_per_step)]);
  // The terms of a step that is too small to estimate say nothing about its time.
  const terms = Object.entries(plan.step.step_seconds ? plan.step.seconds_by_term : {}).map(([term, s]) => [term, secondsText(s)]);
  const ceilings = (plan.step.step_seconds ? plan.step.ceilings : []).map((row) => [`${row.of}${row.runs_as === row.of ? "" : ` as ${row.runs_as}`}`, `${formatNumber(row.per_second)} ${row.of === "memory" ? "bytes" : "FLOPs"}`]);
  return section("work", "Work of a step", [
    listing("FLOPs", ["FLOPs", "a step#", "a token#"], flops),
    terms.length ? listing("Times by term", ["time of", "seconds#"], [...terms, ["where nothing overlaps", secondsText(plan.step.serial_seconds)]]) : null,
    ceilings.length ? listing("Ceilings", [`ceilings (${plan.step.grade})`, "a second#"], ceilings) : null,
    plan.collectives.length ? listing("Collectives", ["collectives", "along", "how many#", "bytes#", "sent by a device#"],
      plan.collectives.map((c) => [c.kind, c.axes.join(", ") + (c.is_across_slices ? " (across slices)" : ""), formatNumber(c.count), bytes(c.num_bytes), bytes(c.wire_bytes)])) : null,
    Object.entries(plan.pipelines).map(([path, p]) => el("p", null, `pipeline ${path}: ${p.stages} stages, ${p.microbatches} microbatches, bubble fraction ${significant(p.bubble_fraction * 100, 3)} %`))]);
}

const planHelp = helpDialog([["t", "light or dark"], ["?", "this list"]]);
document.addEventListener("keydown", (event) => {
  if (!isForPage(event)) return undefined;
  const acts = { t: () => document.querySelector("[data-role=theme]").click(), "?": () => planHelp.showModal() };
  if (!acts[event.key]) return undefined;
  event.preventDefault();
  return acts[event.key]();
});

const mesh = Object.entries(plan.mesh).map(([axis, size]) => `${axis}=${size}`).join(" × ") || "one device";
const rows = `${formatNumber(plan.rows.per_step)} rows and ${formatNumber(plan.tokens_per_step)} tokens a step, ${formatNumber(plan.rows.per_device)} rows on a device at a time`;
const notices = [...(plan.refusal ? [`Compiler error: ${plan.refusal}`] : []), ...plan.notes];

showPage(
  pageHead("luthier plan", `${plan.experiment} on ${plan.slice}`, el("p", { class: "muted" }, `${plan.devices.count} × ${plan.devices.kind}; mesh ${mesh}; ${rows}`),
    [el("button", { class: "bare", type: "button", "aria-label": "Keyboard", title: "Keyboard", onclick: () => planHelp.showModal() }, el("kbd", null, "?"))]),
  notices.length ? el("div", { class: "verdicts" }, notices.map((notice) => el("p", { class: "verdict warn" }, notice))) : null,
  el("main", null,
    tiles(),
    plan.proposals.length ? proposalsSection() : null,
    memorySection(),
    workSection(),
    section("sharding", "Sharding of parameters", listing("Parameters", ["parameter", "shape", "layout", "bytes on a device#", "why"],
      plan.sharding.map((p) => [el("code", null, p.name), p.shape.join(" × ") || "scalar", el("code", null, p.spec), bytes(p.bytes_per_device), p.reason])))));
