"use strict";
// Comfort only: every number is in the page without this.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column], data = cell.querySelector("data");
        return data ? Number(data.value) : cell.textContent.trim();
      };
      const order = (a, b) => {
        const x = key(a), y = key(b);
        if (typeof x === "number" && typeof y === "number") return x - y;
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
        return x.localeCompare(y, "en", { numeric: true });
      };
      const rows = [...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
      body.append(...rows);
    });
  });
}
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copies).textContent.trim();
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = done ? "Copied" : "Select it by hand";
    setTimeout(() => { button.textContent = before; }, 1600);
  });
}
const folds = () => [...document.querySelectorAll("details")];
let closed = [];
addEventListener("beforeprint", () => { closed = folds().filter((fold) => !fold.open); closed.forEach((fold) => { fold.open = true; }); });
addEventListener("afterprint", () => { closed.forEach((fold) => { fold.open = false; }); });
