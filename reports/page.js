// Makes the page handier; everything can be read without it. Nothing is fetched and nothing is stored.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const live = document.querySelector(".say");
  const say = (text) => { live.textContent = text; };
  const make = (name, properties, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };

  const copyText = async (text, node) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(node);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (!document.execCommand("copy")) throw new Error("copying is not allowed here");
      getSelection().removeAllRanges();
    }
  };
  for (const box of all(".copy")) {
    const code = box.querySelector("code");
    const button = make("button", { type: "button", textContent: "Copy" });
    button.addEventListener("click", async () => {
      try {
        await copyText(code.textContent, code);
        button.textContent = "Copied";
        say("Copied");
      } catch {
        button.textContent = "Select and copy";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
    box.classList.add("ready");
    box.append(button);
  }

  const reveal = (node) => {
    for (let at = node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  const openTarget = () => {
    const target = /^#[\w-]+$/.test(location.hash) && document.querySelector(location.hash);
    if (!target) return;
    reveal(target);
    const own = target.querySelector(":scope > .card");
    if (own) own.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    for (const node of opened) node.open = true;
  });
  addEventListener("afterprint", () => { for (const node of opened) node.open = false; });

  const tools = document.getElementById("tools");
  const findings = all("article.finding");
  const visible = (node) => node.offsetParent !== null;
  const summaries = () => findings.map((f) => f.querySelector(":scope > .card > summary")).filter(visible);
  const move = (by) => {
    const list = summaries();
    if (!list.length) return;
    const at = list.findIndex((s) => s.parentElement.contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : list.length - 1) : Math.min(Math.max(at + by, 0), list.length - 1);
    list[next].focus();
    list[next].scrollIntoView({ block: "nearest" });
  };
  if (tools && findings.length > 1) {
    const label = make("label", { className: "out", htmlFor: "filter", textContent: "Filter findings" });
    const filter = make("input", { id: "filter", type: "search", placeholder: "Filter findings" });
    const count = make("span", { className: "soft", role: "status" });
    const expand = make("button", { type: "button", textContent: "Expand all" });
    const keys = make("button", { type: "button", textContent: "Keys j k e /" });
    keys.title = "j and k go to the next and previous finding, e expands all, / goes to the filter";
    keys.setAttribute("aria-pressed", "true");
    const texts = findings.map((f) => f.textContent.toLowerCase());
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let n = 0;
      findings.forEach((f, i) => {
        const fits = words.every((w) => texts[i].includes(w));
        f.hidden = !fits;
        n += fits;
      });
      for (const g of all(".group")) g.hidden = !g.querySelector(":scope > article:not([hidden])");
      count.textContent = words.length ? `${n} of ${findings.length} shown` : "";
    });
    const toggle = () => {
      const open = expand.textContent === "Expand all";
      for (const node of all("#findings .card")) node.open = open;
      expand.textContent = open ? "Fold all" : "Expand all";
    };
    expand.addEventListener("click", toggle);
    keys.addEventListener("click", () => keys.setAttribute("aria-pressed", String(keys.getAttribute("aria-pressed") !== "true")));
    tools.append(label, filter, expand, keys, count);
    tools.hidden = false;
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || keys.getAttribute("aria-pressed") !== "true") return;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const act = { j: () => move(1), k: () => move(-1), e: toggle, "/": () => filter.focus() }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }
})();
