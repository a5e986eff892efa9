// Confirm or dismiss findings with a note; what was said leaves the page as a small file, for `forensics review`.
(() => {
  "use strict";
  const make = (name, properties, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };
  const said = new Map();
  const tools = document.getElementById("tools");
  const cards = [...document.querySelectorAll("article.finding[data-fingerprint]")];
  if (!tools || !cards.length) return;
  const save = make("button", { type: "button", hidden: true });
  const count = () => {
    save.hidden = !said.size;
    save.textContent = `Export ${said.size} ${said.size === 1 ? "review" : "reviews"}`;
  };
  save.addEventListener("click", () => {
    const reviews = [...said].map(([fingerprint, review]) => ({ fingerprint, ...review }));
    const text = JSON.stringify({ format: "forensics.reviews/1", reviews }, null, 1);
    const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href, download: "reviews.json" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
    document.querySelector(".say").textContent = "Exported reviews.json; record it with forensics review CASE --file reviews.json";
  });
  for (const card of cards) {
    const fingerprint = card.dataset.fingerprint;
    const id = `note-${card.id}`;
    const note = make("input", { id, type: "text", maxLength: 2000, placeholder: "Note" });
    const buttons = [["confirmed", "Confirm"], ["dismissed", "Dismiss"]].map(([state, label]) => {
      const button = make("button", { type: "button", textContent: label });
      button.setAttribute("aria-pressed", String(card.dataset.review === state));
      button.addEventListener("click", () => {
        const taken = button.getAttribute("aria-pressed") === "true";
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button && !taken));
        said.set(fingerprint, { state: taken ? "open" : state, note: note.value });
        count();
      });
      return button;
    });
    note.addEventListener("input", () => {
      const known = said.get(fingerprint);
      if (known) known.note = note.value;
    });
    const label = make("label", { className: "out", htmlFor: id, textContent: "Note of the review" });
    const row = make("div", { className: "review" }, make("span", { className: "soft", textContent: "Review" }), ...buttons, label, note);
    card.querySelector(":scope > .card > .body").append(row);
  }
  tools.append(save);
  tools.hidden = false;
})();
