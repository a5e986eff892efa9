// Makes drawings handier: values under the pointer or the arrow keys, and zoom. Every drawing is whole without it.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const svgNode = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const shortNumber = (value) => String(Number(value.toPrecision(5)));
  const bytes = (value) => {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(value) < 1024) return `${Number(value.toPrecision(4))} ${unit}`;
      value /= 1024;
    }
    return `${Number(value.toPrecision(4))} TiB`;
  };

  // The points of a line: those of a polyline, or the corners of stairs written as M, H and V.
  const pointsOf = (line) => {
    if (line.tagName === "polyline") return line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
    let at = [0, 0];
    return [...line.getAttribute("d").matchAll(/([MHV])([-\d.]+)(?: ([-\d.]+))?/g)].map(([, kind, a, b]) => {
      at = kind === "M" ? [Number(a), Number(b)] : kind === "H" ? [Number(a), at[1]] : [at[0], Number(a)];
      return at;
    });
  };

  for (const svg of all("svg.series")) {
    const [x0, x1, px0, px1] = svg.dataset.x.split(" ").map(Number);
    const [y0, y1, py0, py1] = svg.dataset.y.split(" ").map(Number);
    const valueAt = (py) => {
      const ratio = (py - py0) / (py1 - py0);
      return svg.dataset.log ? 10 ** (Math.log10(y0) + ratio * Math.log10(y1 / y0)) : y0 + ratio * (y1 - y0);
    };
    const show = svg.dataset.unit === "bytes" ? bytes : shortNumber;
    const lines = new Map();
    for (const line of all(".line, .stairs[data-rank]", svg)) {
      lines.set(line.dataset.rank, (lines.get(line.dataset.rank) || []).concat(pointsOf(line)));
    }
    if (!lines.size) continue;
    const stairs = svg.querySelector(".stairs");
    const layer = svgNode("g", { visibility: "hidden", "aria-hidden": "true" });
    svg.append(layer);
    let at = null;
    const nearest = (points, px) => {
      if (stairs) return points.filter((p) => p[0] <= px + 0.05).at(-1) || points[0];
      const near = points.reduce((a, b) => (Math.abs(b[0] - px) < Math.abs(a[0] - px) ? b : a));
      return Math.abs(near[0] - px) < 8 ? near : null;
    };
    const read = (px) => {
      at = clamp(px, px0, px1);
      const x = x0 + ((at - px0) / (px1 - px0)) * (x1 - x0);
      const axis = svg.dataset.axis;
      const head = axis === "ns" ? `+${shortNumber((x - x0) / 1e9)} s` : `${axis} ${Math.round(x)}`;
      const rows = [head];
      for (const [rank, points] of lines) {
        const near = nearest(points, at);
        if (near) rows.push(`${rank}  ${show(valueAt(near[1]))}`);
      }
      const wide = 140;
      const left = at > (px0 + px1) / 2 ? at - wide - 10 : at + 10;
      layer.replaceChildren(
        svgNode("path", { d: `M${at} ${py1}V${py0}`, class: "hair" }),
        svgNode("rect", { x: left, y: py1 + 4, width: wide, height: rows.length * 15 + 8, rx: 4, class: "read-plate" }),
        ...rows.map((row, i) => {
          const text = svgNode("text", { x: left + 8, y: py1 + 18 + 15 * i, class: "read" });
          text.textContent = row;
          return text;
        }),
      );
      layer.setAttribute("visibility", "visible");
      return rows.join(", ");
    };
    const hide = () => layer.setAttribute("visibility", "hidden");
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const matrix = svg.getScreenCTM();
      if (matrix) read(new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse()).x);
    });
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const step = (px1 - px0) / (event.shiftKey ? 20 : 200);
      document.querySelector(".say").textContent = read((at ?? px0) + by * step);
    });
  }

  // Zoom: buttons, + - 0 on the keyboard, the wheel with Ctrl held, dragging once enlarged.
  for (const box of all(".picture")) {
    const svg = box.querySelector("svg.plot");
    if (!svg) continue;
    const whole = svg.getAttribute("viewBox").split(" ").map(Number);
    let [x, y, w, h] = whole;
    const button = (label, title, act) => {
      const node = Object.assign(document.createElement("button"), { type: "button", textContent: label });
      node.setAttribute("aria-label", `${title}: ${box.getAttribute("aria-label")}`);
      node.title = title;
      node.addEventListener("click", act);
      return node;
    };
    const apply = () => {
      w = clamp(w, whole[2] / 40, whole[2]);
      h = whole[3] * (w / whole[2]);
      x = clamp(x, whole[0], whole[0] + whole[2] - w);
      y = clamp(y, whole[1], whole[1] + whole[3] - h);
      svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
      svg.classList.toggle("zoomed", w < whole[2]);
      out.disabled = w >= whole[2];
      reset.disabled = out.disabled;
    };
    const zoom = (factor, px = x + w / 2, py = y + h / 2) => {
      const next = clamp(w * factor, whole[2] / 40, whole[2]);
      x = px - (px - x) * (next / w);
      y = py - (py - y) * (next / w);
      w = next;
      apply();
    };
    const into = button("+", "Enlarge", () => zoom(0.6));
    const out = button("−", "Reduce", () => zoom(1 / 0.6));
    const reset = button("Whole", "Show the whole drawing", () => { [x, y, w, h] = whole; apply(); });
    const bar = Object.assign(document.createElement("div"), { className: "zoom" });
    bar.append(into, out, reset);
    box.before(bar);
    apply();
    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => reset.click(),
      }[event.key];
      const pan = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (act) act();
      else if (pan && event.target === box && w < whole[2]) { x += pan[0] * w * 0.1; y += pan[1] * h * 0.1; apply(); }
      else return;
      event.preventDefault();
    });
    box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, point.x, point.y);
    }, { passive: false });
    let from = null;
    svg.addEventListener("pointerdown", (event) => { if (w < whole[2]) from = [event.clientX, event.clientY, x, y]; });
    addEventListener("pointerup", () => { from = null; });
    svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const scale = w / svg.clientWidth;
      x = from[2] - (event.clientX - from[0]) * scale;
      y = from[3] - (event.clientY - from[1]) * scale;
      apply();
    });
  }
})();
