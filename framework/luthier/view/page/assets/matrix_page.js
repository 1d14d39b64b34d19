// The page of a matrix alone.

const matrix = readData();
const varied = `${plural(matrix.rows.length, "setting")} of ${plural(matrix.columns.length, matrix.noun || "trial")}`;
const matrixFilter = el("input", { type: "search", id: "search", placeholder: "Search paths", "aria-label": "Search paths", autocomplete: "off", oninput: () => showMatrix() });
const matrixPlace = el("div", { class: "matrix-place" });
const matrixHelp = helpDialog([["/", "search paths"], ["t", "light or dark"], ["Esc", "clear the search"], ["?", "this list"]]);

function showMatrix() {
  const word = matrixFilter.value.trim().toLowerCase();
  const found = matrix.rows.filter((row) => row.path.toLowerCase().includes(word));
  matrixPlace.replaceChildren(...matrixTable({ ...matrix, rows: found }, true));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { matrixFilter.value = ""; return showMatrix(); }
  if (!isForPage(event)) return undefined;
  const acts = { "/": () => matrixFilter.select(), t: () => document.querySelector("[data-role=theme]").click(), "?": () => matrixHelp.showModal() };
  if (!acts[event.key]) return undefined;
  event.preventDefault();
  return acts[event.key]();
});

showPage(
  pageHead("luthier diff", matrix.title, el("p", { class: "muted" }, varied),
    [el("button", { class: "bare", type: "button", "aria-label": "Keyboard", title: "Keyboard", onclick: () => matrixHelp.showModal() }, el("kbd", null, "?"))]),
  el("main", null, el("div", { class: "chips no-print", role: "search" }, matrixFilter), matrixPlace));
showMatrix();
