"use strict";
// Comfort only: without this all claims are shown. The choice is kept in the address, so that it can be sent.
{
  const form = document.getElementById("filters");
  const tables = [...document.querySelectorAll("section")].filter((section) => section.querySelector("[data-tally]"));
  const total = document.querySelectorAll("tr[data-axis]").length;
  const tally = (rows) => {
    const counts = new Map();
    for (const row of rows) counts.set(row.dataset.verdict, (counts.get(row.dataset.verdict) ?? 0) + 1);
    return [...counts].sort().map(([word, count]) => `${count} ${word}`).join(", ") || "none";
  };
  const show = () => {
    const asked = [...new FormData(form)].filter(([, value]) => value);
    const fits = (row) => asked.every(([name, value]) => row.dataset[name].split("; ").includes(value));
    const shown = [];
    for (const table of tables) {
      const rows = [...table.querySelectorAll("tr[data-axis]")];
      for (const row of rows) row.hidden = !fits(row);
      const left = rows.filter((row) => !row.hidden);
      table.querySelector("[data-tally]").textContent = tally(left);
      shown.push(...left);
    }
    form.querySelector("output").textContent = `${shown.length} of ${total} claims: ${tally(shown)}`;
    return asked;
  };
  const keep = () => {
    const asked = new URLSearchParams(show()).toString();
    history.replaceState(null, "", asked ? `#${asked}` : location.pathname);
  };
  const restore = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const select of form.querySelectorAll("select")) {
      const value = asked.get(select.name) ?? "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    show();
  };
  form.addEventListener("change", keep);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(keep));
  addEventListener("hashchange", restore);
  form.hidden = false;
  restore();
}
