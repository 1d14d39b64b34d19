// The shared parts of every page: elements, formats, copying, the theme. Data reach the page as text only.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; texts among its children become text nodes, never markup. */
function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

/** The data that the page was written with. */
function readData() {
  return JSON.parse(document.getElementById("data").textContent);
}

const SUFFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BINARY = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** A readable number; anything else as text. */
function formatNumber(value, unit) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (unit === "bytes") {
    for (const [factor, name] of BINARY) if (size >= factor) return `${significant(value / factor, 4)} ${name}`;
    return `${significant(value, 4)} B`;
  }
  const words = unit ? ` ${unit}` : "";
  if (size >= 1e5) {
    for (const [factor, name] of SUFFIXES) {
      if (size >= factor) return `${significant(value / factor, 4)} ${name}`.replace(/ (.)$/, "\u202f$1") + words;
    }
  }
  return significant(value, 6) + words;
}

/** A number with so many significant digits and no idle zeros. */
function significant(value, digits) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
}

/** The change of a number: `×2`, `+12.5 %`, or the difference. */
function formatChange(before, after) {
  if (typeof before !== "number" || typeof after !== "number" || before === after) return "";
  if (before > 0 && after > 0) {
    const ratio = after / before;
    if (ratio >= 2 || ratio <= 0.5) return `×${significant(ratio, 3)}`;
    return `${ratio > 1 ? "+" : "−"}${significant(Math.abs(ratio - 1) * 100, 3)} %`;
  }
  return `${after > before ? "+" : "−"}${significant(Math.abs(after - before), 4)}`;
}

function plural(count, one, many) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many || `${one}s`}`;
}

/** A class without its module, unless both sides have classes of that name in different modules. */
function short(text, other) {
  const bare = (name) => /^(?:[a-z]+ )?(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)$/.exec(name)?.[1];
  const own = bare(text);
  return own && (text === other || other === null || own !== bare(other)) ? own : text;
}

/** An argument quoted for a POSIX shell. */
function shellQuote(word) {
  return /^[A-Za-z0-9_./,:=+@%-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** An address of a safe scheme; null for any other (`javascript:` would run code). */
function safeLink(text) {
  if (!text) return null;
  try {
    return ["http:", "https:", "file:"].includes(new URL(text, document.baseURI).protocol) ? text : null;
  } catch {
    return null;
  }
}

const toast = el("p", { class: "toast", role: "status", "aria-live": "polite" });
let toastTimer = 0;

/** Show a message for a moment; screen readers announce it. */
function announce(text) {
  toast.textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast.textContent = ""; }, 2500);
}

/** Copy a text. Without a secure context (a page from http: or file:) there is no clipboard API. */
async function copyText(text, message) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (focused) focused.focus();
    if (!done) return announce("The browser did not let this page copy");
  }
  return announce(message);
}

function storedTheme() {
  try {
    return localStorage.getItem("luthier-theme");
  } catch {
    return null;
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const button of document.querySelectorAll("[data-role=theme]")) {
    const other = theme === "dark" ? "light" : "dark";
    button.textContent = theme === "dark" ? "☀" : "☾";
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme`;
  }
}

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function preferredTheme() {
  return storedTheme() || (prefersDark.matches ? "dark" : "light");
}

/** The button that switches between light and dark, and remembers it. */
function themeButton() {
  const button = el("button", { class: "bare", type: "button", "data-role": "theme", onclick: () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("luthier-theme", theme);
    } catch { /* it is not remembered, and switched all the same */ }
    setTheme(theme);
  } });
  return button;
}

/** A dialog that lists the keys; `keys` holds pairs of keys and their actions. */
function helpDialog(keys) {
  const dialog = el("dialog", { "aria-labelledby": "help-title" },
    el("h2", { id: "help-title" }, "Keyboard"),
    el("dl", null, keys.map(([names, what]) => [
      el("dt", null, names.split(" ").flatMap((name, i) => [i ? " " : null, el("kbd", null, name)])), el("dd", null, what),
    ])),
    el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  return dialog;
}

/** The head of a page: what it is, its title, and the tools. */
function pageHead(kind, title, below, tools) {
  return el("header", { class: "top" },
    el("div", null, el("p", { class: "muted" }, kind), el("h1", null, title), below),
    el("div", { class: "tools no-print" }, tools, themeButton()));
}

/** Put the page together and show it. */
function showPage(...parts) {
  document.getElementById("page").replaceChildren(...parts.flat().filter(Boolean));
  document.body.append(toast);
  setTheme(preferredTheme());
  prefersDark.addEventListener("change", () => setTheme(preferredTheme()));
}

/** Whether a key is meant for the page, and not for a field or a shortcut of the browser. */
function isForPage(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
  return !event.target.closest("input, select, textarea, dialog");
}
