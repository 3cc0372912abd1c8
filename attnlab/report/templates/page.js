"use strict";
// Progressive enhancement: every number is on the page without this script.
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
const armRows = [...document.querySelectorAll("table.arms tbody tr")], finder = document.getElementById("find-arm");
if (finder) {
  const names = armRows.map((row) => row.dataset.arm);
  const armOf = (mark) => names.find((name) => [": ", ", ", " at "].some((end) => mark.getAttribute("aria-label").startsWith(name + end)));
  const marks = [...document.querySelectorAll("figure svg [data-arm], figure svg [aria-label]")]
    .map((mark) => [mark, mark.dataset.arm ?? armOf(mark)]).filter(([, arm]) => arm);
  let chosen = null;
  const choose = (arm) => {
    chosen = arm === chosen ? null : arm;
    for (const row of armRows) {
      row.classList.toggle("chosen", row.dataset.arm === chosen);
      row.querySelector("th button").setAttribute("aria-pressed", row.dataset.arm === chosen);
    }
    for (const [mark, arm] of marks) mark.classList.toggle("dim", chosen !== null && arm !== chosen);
  };
  for (const row of armRows) {
    const button = document.createElement("button"), head = row.cells[0];
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    row.addEventListener("click", () => choose(row.dataset.arm));
  }
  finder.closest(".find").hidden = false;
  finder.addEventListener("input", () => {
    const query = finder.value.trim().toLowerCase();
    for (const row of armRows) row.hidden = !row.textContent.toLowerCase().includes(query);
  });
}
// The first screen is printed; "Print all" prints the whole page with its folds open.
const root = document.documentElement, printAll = document.getElementById("print-all");
let closed = [];
addEventListener("beforeprint", () => {
  if (printAll && !root.classList.contains("whole")) return;
  closed = [...document.querySelectorAll("details")].filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
});
addEventListener("afterprint", () => { closed.forEach((fold) => { fold.open = false; }); closed = []; });
if (printAll) {
  printAll.hidden = false;
  printAll.addEventListener("click", () => { root.classList.add("whole"); print(); root.classList.remove("whole"); });
}
