"use strict";
// Progressive enhancement: without this script all claims are shown. The address holds the filters, so that a link keeps them.
{
  const readText = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll("[aria-hidden], .ratio").forEach((part) => part.remove());
    return copy.textContent.trim();
  };
  const list = (names) => [...document.querySelectorAll(`:is(${names}) > tbody > tr`)].map((row) => {
    const heads = [...row.closest("table").tHead.rows[0].cells].map((head) => head.textContent.trim());
    return { row, text: row.textContent.toLowerCase(), get: (title) => readText(row.cells[heads.indexOf(title)]).split("; ") };
  });
  const claims = list(".hypotheses, .identities"), options = list(".options");
  const form = document.createElement("form"), output = document.createElement("output"), reset = document.createElement("button");
  const label = (name, control) => {
    const element = document.createElement("label");
    control.name = name;
    element.append(`${name} `, control);
    return element;
  };
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "claim, arm, source or experiment", autocomplete: "off" });
  const selects = ["axis", "verdict", "source"].map((name) => {
    const select = document.createElement("select"), values = new Set(claims.flatMap((claim) => claim.get(name)));
    select.append(new Option("all", ""), ...[...values].sort().map((value) => new Option(value)));
    return label(name, select);
  });
  Object.assign(reset, { type: "reset", textContent: "Show all" });
  output.setAttribute("aria-live", "polite");
  form.id = "filters";
  form.setAttribute("aria-label", "Filter the claims");
  form.append(label("search", search), ...selects, reset, output);
  document.querySelector("main").before(form);
  const show = () => {
    const filters = [...new FormData(form)].filter(([, value]) => value.trim());
    const matches = (item, [name, value]) => (name === "search"
      ? value.toLowerCase().split(/\s+/).every((word) => item.text.includes(word)) : item.get(name).includes(value));
    const counts = new Map();
    let shown = 0;
    for (const claim of claims) {
      claim.row.hidden = !filters.every((filter) => matches(claim, filter));
      if (claim.row.hidden) continue;
      const [verdict] = claim.get("verdict");
      counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
      shown += 1;
    }
    for (const option of options) option.row.hidden = !filters.every((filter) => filter[0] !== "search" || matches(option, filter));
    const tally = [...counts].sort().map(([verdict, count]) => `${count} ${verdict}`).join(", ") || "none";
    output.textContent = `${shown} of ${claims.length} claims: ${tally}`;
    return filters;
  };
  const updateAddress = () => {
    const filters = new URLSearchParams(show()).toString();
    history.replaceState(null, "", filters ? `#${filters}` : location.pathname);
  };
  const restore = () => {
    if (document.getElementById(location.hash.slice(1))) return; // a place in the page
    const filters = new URLSearchParams(location.hash.slice(1));
    search.value = filters.get("search") ?? "";
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
  restore();
  show();
}
