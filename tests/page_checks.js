// What an open page is asked; each check gives sentences on what is wrong with it, [] where nothing is.
globalThis.pageChecks = (() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const classes = (node) => node.getAttribute("class") || "";
  const named = (node) => `${node.tagName.toLowerCase()}${classes(node) && `.${classes(node).replace(/ /g, ".")}`}`;
  const some = (found, n = 5) => [...new Set(found)].slice(0, n);
  // False in what is folded, too.
  const isShown = (node) => node.checkVisibility({ visibilityProperty: true });

  const texts = (root = document.body) => {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.parentElement.closest("script, style, title, desc")) found.push(node);
    }
    return found;
  };

  // Nothing stands in the page that could load, run or lead anywhere but to a place in it or a reference.
  const inert = () => [
    ...all("img, iframe, object, embed, form, base, video, audio, link:not([rel=icon]), meta[http-equiv=refresh]").map(named),
    ...all("script, body style, use, foreignObject, animate, set").slice(1).map(named),
    ...all("*").filter((node) => [...node.attributes].some((a) => /^(on|style$)/i.test(a.name))).map((n) => n.outerHTML.slice(0, 80)),
    ...all("a").filter((a) => !/^(#|https?:)/.test(a.getAttribute("href"))).map((a) => a.outerHTML.slice(0, 80)),
  ].map((what) => `not inert: ${what}`);

  const wide = () => {
    const n = document.documentElement.scrollWidth;
    return n > innerWidth ? [`${n} px wide in a window of ${innerWidth}`] : [];
  };

  // Words of two elements of one line with nothing between them, and sentences without a blank after their mark.
  const joined = () => {
    const block = (node) => {
      let at = node.parentElement;
      while (getComputedStyle(at).display === "inline") at = at.parentElement;
      return at;
    };
    const found = [];
    let before = null;
    for (const node of texts()) {
      if (!node.data.trim()) { before = null; continue; }
      if (node.parentElement.closest("pre, code, svg, button, .esc, .left-out")) { before = null; continue; }
      const here = { node, block: block(node) };
      if (before && before.block === here.block) {
        const [a, b] = [before.node.data, node.data];
        const broken = /^[WB]+R$/.test((node.previousSibling ?? node.parentElement.previousSibling)?.tagName);
        if (!broken && /[\p{L}\d),;:.]$/u.test(a) && /^[\p{L}\d(]/u.test(b)) found.push(a.slice(-30) + b.slice(0, 30));
        const mark = /[\p{L}\d)][;,:]$/u.test(a) || /^[;,]\S/.test(b);
        if (!broken && mark && /^[;,]?\p{Lu}\p{Ll}/u.test(b)) found.push(a.slice(-30) + b.slice(0, 30));
      }
      const inside = !node.parentElement.closest(".mono") && node.data.match(/.{0,20}[\p{Ll}\d)][;,]\p{Lu}\p{Ll}.{0,20}/u);
      if (inside) found.push(inside[0]);
      before = here;
    }
    return some(found).map((what) => `runs together: ${what}`);
  };

  // Labels of drawings: none on another, none across the edge of a box, none beyond the drawing.
  const drawings = () => {
    const found = [];
    for (const svg of all("svg.plot, svg.chain, svg.lanes, svg.series")) {
      if (!isShown(svg)) continue;
      const frame = svg.getBoundingClientRect();
      const unit = frame.width / svg.viewBox.baseVal.width;
      const labels = all("text", svg).filter((t) => t.textContent.trim()).map((t) => [t.getBoundingClientRect(), t.textContent]);
      const boxes = all("rect.box, rect.op-box, rect.chip", svg).map((r) => r.getBoundingClientRect());
      const where = named(svg);
      const shared = (a, b) => [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      labels.sort((a, b) => a[0].top - b[0].top);
      labels.forEach(([a, text], i) => {
        if (a.left < frame.left - unit || a.right > frame.right + unit || a.top < frame.top - 3 * unit || a.bottom > frame.bottom + 3 * unit)
          found.push(`${where}: "${text}" runs out of the drawing`);
        for (let j = i + 1; j < labels.length && labels[j][0].top < a.bottom; j++) {
          const [x, y] = shared(a, labels[j][0]);
          if (x > 2 * unit && y > 0.35 * Math.min(a.height, labels[j][0].height)) found.push(`${where}: "${text}" on "${labels[j][1]}"`);
        }
        for (const b of boxes) {
          const [x, y] = shared(a, b);
          const out = Math.max(b.left - a.left, a.right - b.right, b.top - a.top, a.bottom - b.bottom);
          if (x > 2 * unit && y > 0.35 * a.height && out > 3 * unit) found.push(`${where}: "${text}" across the edge of a box`);
        }
      });
    }
    return some(found, 8);
  };

  // Every part of a page that can be reached by Tab, in its order.
  const stops = () => all("a[href], button, input, textarea, select, summary, [tabindex='0']").filter((n) => !n.disabled && isShown(n));

  const hasFocusMark = (node) => {
    const style = getComputedStyle(node);
    if (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) return true;
    const box = node.querySelector(".box");
    return Boolean(box) && getComputedStyle(box).strokeWidth === "2px";
  };

  let walked = [];
  // Of the stop before, which has been scrolled to by now.
  const judgeStop = () => {
    const node = document.activeElement;
    if (!walked.length || walked.at(-1)[0] !== node) return;
    const r = node.getBoundingClientRect();
    const bar = document.querySelector(".top");
    const top = getComputedStyle(bar).position === "sticky" && !bar.contains(node) ? bar.getBoundingClientRect().bottom : 0;
    if (!hasFocusMark(node)) walked.at(-1)[1].push("shows no focus");
    const hidden = r.bottom <= top || r.top >= innerHeight || r.right <= 0 || r.left >= innerWidth;
    if (hidden && !node.classList.contains("skip")) walked.at(-1)[1].push("is out of sight with the focus on it");
  };
  const noteStop = (event) => walked.push([event.target, []]);
  const beginWalk = () => {
    walked = [];
    document.activeElement.blur();
    getSelection().removeAllRanges();
    scrollTo(0, 0);
    document.addEventListener("focusin", noteStop);
    document.addEventListener("keydown", judgeStop);
    return stops().length;
  };
  const endWalk = () => {
    document.removeEventListener("focusin", noteStop);
    document.removeEventListener("keydown", judgeStop);
    const wanted = stops();
    const found = walked.slice(0, wanted.length).map(([node]) => node);
    const missed = wanted.filter((node) => !found.includes(node));
    const faults = walked.flatMap(([node, said]) => said.map((one) => `${named(node)} ${one}`));
    if (!missed.length && wanted.some((node, i) => node !== found[i])) faults.push("Tab does not follow the order of the page");
    return some([...missed.map((node) => `Tab does not reach ${named(node)}`), ...faults]);
  };

  const toFolded = () => {
    const folded = all("details:not([open]) > summary").find(isShown);
    folded?.focus();
    return Boolean(folded);
  };

  // With the style for paper: every text that is folded on the screen.
  const printed = () => {
    const unsaid = "nav, .tools, .skip, button, .review, .zoom, .say, .out, .read, .left-out, caption, svg";
    const lost = texts().filter((t) => t.data.trim() && !t.parentElement.closest(unsaid) && !isShown(t.parentElement));
    return some(lost.map((t) => `not printed: ${t.data.trim().slice(0, 60)}`));
  };

  const words = () => {
    const copy = document.querySelector("main").cloneNode(true);
    for (const node of all("button, .review, .tools, .zoom, .hair, .read, .read-plate", copy)) node.remove();
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  const nDrawn = () => all("svg[role]").filter((svg) => svg.getBoundingClientRect().width > 0).length;
  const unfold = () => all("details").filter((node) => !node.open && (node.open = true)).length;
  const fold = () => all("details.fold, .below details").filter((node) => node.open && !(node.open = false)).length;
  const kinds = () => [...new Set(all("body, main > section, figure, svg[role], details, dl, ol").map((n) => `${named(n)}${n.tagName === "SECTION" ? `#${n.id}` : ""}`))].sort();

  return { inert, wide, joined, drawings, beginWalk, endWalk, toFolded, printed, words, nDrawn, unfold, fold, kinds };
})();
true;
