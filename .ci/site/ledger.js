"use strict";
// Progressive enhancement: without this script all claims are shown. The address holds the filters, so that a link keeps them.
{
  const form = document.getElementById("filters");
  const tables = [...document.querySelectorAll("section")].filter((section) => section.querySelector("[data-tally]"));
  const total = document.querySelectorAll("tr[data-axis]").length;
  const tally = (rows) => {
    const counts = new Map();
    for (const row of rows) counts.set(row.dataset.verdict, (counts.get(row.dataset.verdict) ?? 0) + 1);
    return [...counts].sort().map(([word, count]) => `${count} ${word}`).join(", ") || "none";
  };
  const searched = new Map([...document.querySelectorAll("tr[data-axis]")]
    .map((row) => [row, [...row.cells].slice(0, 3).map((cell) => cell.textContent).join(" ").toLowerCase()])); // claim, arms, source
  const goals = [...document.querySelectorAll("section[data-goal]")];
  for (const row of document.querySelectorAll("tr[data-option]")) searched.set(row, row.textContent.toLowerCase());
  const contains = (row, query) => query.toLowerCase().split(/\s+/).every((word) => searched.get(row).includes(word));
  const show = () => {
    const filters = [...new FormData(form)].filter(([, value]) => value.trim());
    const matches = (row) => filters.every(([name, value]) =>
      name === "goal" || (name === "search" ? contains(row, value) : row.dataset[name].split("; ").includes(value)));
    const chosen = new Map(filters);
    for (const goal of goals) {
      const rows = [...goal.querySelectorAll("tr[data-option]")];
      for (const row of rows) row.hidden = chosen.has("search") && !contains(row, chosen.get("search"));
      goal.hidden = (chosen.has("goal") && chosen.get("goal") !== goal.dataset.goal) || rows.every((row) => row.hidden);
    }
    const shown = [];
    for (const table of tables) {
      const rows = [...table.querySelectorAll("tr[data-axis]")];
      for (const row of rows) row.hidden = !matches(row);
      const matching = rows.filter((row) => !row.hidden);
      table.querySelector("[data-tally]").textContent = tally(matching);
      shown.push(...matching);
    }
    form.querySelector("output").textContent = `${shown.length} of ${total} claims: ${tally(shown)}`;
    return filters;
  };
  const updateAddress = () => {
    const filters = new URLSearchParams(show()).toString();
    history.replaceState(null, "", filters ? `#${filters}` : location.pathname);
  };
  const restore = () => {
    if (document.getElementById(location.hash.slice(1))) return; // a place in the page
    const filters = new URLSearchParams(location.hash.slice(1));
    form.elements.search.value = filters.get("search") ?? "";
    for (const select of form.querySelectorAll("select")) {
      const value = filters.get(select.name) ?? "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    show();
  };
  form.addEventListener("input", updateAddress);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(updateAddress));
  addEventListener("hashchange", restore);
  form.hidden = false;
  show();
  restore();
}
