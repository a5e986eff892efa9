// A field above each long table that hides rows without the typed words; without scripts all rows stay.
"use strict";
for (const table of document.querySelectorAll("table[data-filter]")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 8) continue;
  const box = document.createElement("p");
  box.className = "tools";
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  field.type = "search";
  label.append(table.dataset.filter + " ", field);
  box.append(label, count);
  table.before(box);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    rows.forEach((row, n) => {
      row.hidden = !words.every((word) => texts[n].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = shown === rows.length ? "" : shown + " of " + rows.length;
  });
}
