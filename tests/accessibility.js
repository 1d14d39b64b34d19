// What is wrong with a page for people who see little, or who use no mouse: lists of complaints.
({
  // Texts whose contrast with what is behind them is under AA of WCAG 2.
  hardToRead: () => {
    const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const parse = (text) => {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
    };
    const ground = (node) => {
      const layers = [];
      for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
      let found = [255, 255, 255];
      for (const [r, g, b, a] of layers.reverse()) found = [r, g, b].map((v, i) => v * a + found[i] * (1 - a));
      return found;
    };
    const bad = [];
    for (const node of document.querySelectorAll("body *")) {
      const own = [...node.childNodes].filter((c) => c.nodeType === 3 && c.textContent.trim());
      if (!own.length || !node.getClientRects().length) continue;
      if (["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(node.tagName) || node.closest(".visually-hidden, .skip, :disabled")) continue;
      const style = getComputedStyle(node);
      const ink = parse(node.namespaceURI.endsWith("svg") ? style.fill : style.color).slice(0, 3);
      const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      const large = parseFloat(style.fontSize) >= 24;
      if (ratio < (large ? 3 : 4.5)) bad.push(`${ratio.toFixed(2)} ${node.className.baseVal ?? node.className} ${own[0].textContent.trim().slice(0, 30)}`);
    }
    return bad;
  },
  // Controls without a name, ids twice, references to nothing, rows outside of grids.
  nameless: () => {
    const bad = [];
    const name = (n) => (n.getAttribute("aria-label") || n.textContent || n.title || "").trim()
      || (n.id && document.querySelector(`label[for="${n.id}"]`)?.textContent) || n.closest("label")?.textContent;
    for (const n of document.querySelectorAll("button, a, input, select, [role=treegrid], [role=group], [role=img], dialog, aside")) {
      if (n.tagName === "DIALOG" ? !n.getAttribute("aria-labelledby") : !name(n)) bad.push(n.outerHTML.slice(0, 120));
    }
    const ids = [...document.querySelectorAll("[id]")].map((n) => n.id);
    bad.push(...ids.filter((id, i) => ids.indexOf(id) !== i).map((id) => `id twice: ${id}`));
    for (const n of document.querySelectorAll("[aria-activedescendant], [aria-labelledby], [aria-describedby], [aria-controls]"))
      for (const kind of ["aria-activedescendant", "aria-labelledby", "aria-describedby", "aria-controls"])
        if (n.hasAttribute(kind) && !document.getElementById(n.getAttribute(kind))) bad.push(`${kind} to nothing: ${n.getAttribute(kind)}`);
    for (const n of document.querySelectorAll("[role=row]"))
      if (!n.closest("[role=treegrid], [role=grid], [role=table]")) bad.push("a row outside a grid");
    if (document.documentElement.lang !== "en" || !document.title) bad.push("no language or title");
    if (document.querySelectorAll("h1").length !== 1) bad.push("not one h1");
    return bad;
  },
})
