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
  // Texts that are cut off by an element that neither wraps nor scrolls, that are beside the page, or over another text.
  misplaced: () => {
    const bad = [];
    const shown = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const node = text.parentElement;
      if (!text.textContent.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(node.tagName)) continue;
      if (!node.checkVisibility({ visibilityProperty: true }) || node.closest(".visually-hidden, .skip, dialog, svg")) continue;
      const range = document.createRange();
      range.selectNodeContents(text);
      const name = `${node.className || node.tagName}: ${text.textContent.trim().slice(0, 40)}`;
      const above = [];
      for (let at = node; at && at !== document.body; at = at.parentElement) above.push([at, getComputedStyle(at), at.getBoundingClientRect()]);
      const isFloating = above.some(([, style]) => ["sticky", "fixed"].includes(style.position));
      for (const rect of range.getClientRects()) {
        const seen = { left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom };
        for (const [at, style, box] of above) {
          if (style.display === "contents" || style.display === "inline") continue;
          for (const [overflow, start, end] of [[style.overflowX, "left", "right"], [style.overflowY, "top", "bottom"]]) {
            if (overflow === "visible") continue;
            const isCut = seen[start] < box[start] - 1.5 || seen[end] > box[end] + 1.5;
            if (isCut && ["hidden", "clip"].includes(overflow) && seen[end] > seen[start]) bad.push(`cut by ${at.className || at.tagName}: ${name}`);
            seen[start] = Math.max(seen[start], box[start]);
            seen[end] = Math.min(seen[end], box[end]);
          }
        }
        if (seen.right - seen.left < 2 || seen.bottom - seen.top < 2) continue;
        if (seen.right > innerWidth + 1 || seen.left < -1) bad.push(`beside the page: ${name}`);
        if (!isFloating) shown.push([seen, name, text]);
      }
    }
    shown.sort(([a], [b]) => a.top - b.top);
    for (const [i, [a, name, text]] of shown.entries()) {
      for (let j = i + 1; j < shown.length && shown[j][0].top < a.bottom - 3; j += 1) {
        const [b, other, otherText] = shown[j];
        if (text !== otherText && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2) bad.push(`${name} over ${other}`);
      }
    }
    return [...new Set(bad)];
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
