"use strict";
// The attention explorer: text, map and lines of one head, beside those of another head. The maps are packed in the page's
// own data. The address holds the state of the view: #head=arm/layer/head&seed=&step=&q=&beside=arm/layer/head/seed&difference&view=.
(() => {
  const view = document.getElementById("head-view"), data = JSON.parse(document.getElementById("data").textContent);
  if (!view || !data.maps.length) return;
  const MEAN = "mean", OVER = 0.3, LINES = 320;
  const HELP = "Point at a cell to read it. On a map, arrow keys change head and layer, Page Up and Page Down the query.";
  const [title, text, readout, tip, table, caution, steps] =
    ["h4", ".text", ".readout", ".tip", "table", ".caution", ".steps"].map((s) => view.querySelector(s));
  const [run, layer, head, mode, run2, layer2, head2, kind, over, step, rescale, nofirst] =
    ["run", "layer", "head", "mode", "run2", "layer2", "head2", "view", "over", "step", "rescale", "nofirst"]
      .map((name) => view.querySelector(`[name=${name}]`));
  const panels = [...view.querySelectorAll(".panel")], canvas = view.querySelector("canvas.map");

  // Selectable runs: {entry, points: [{step, layers, weights}], part}; an entry without head_numbers has only means of layers.
  const same = (a, b) => a.arm === b.arm && a.seed === b.seed;
  const runs = [
    ...data.maps.map((entry) => ({ entry, points: [...data.earlier.filter((one) => same(one, entry)), entry], part: "" })),
    ...data.picked.map((entry) => ({ entry, points: [entry], part: `, layer ${entry.layers[0]}, head ${entry.head_numbers[0]}` })),
    ...data.seeds.map((one) => ({
      entry: { ...data.maps.find(({ arm }) => arm === one.arm), ...one, head_numbers: [], groups: [], patterns: [], scores: {} },
      points: [one], part: ", layer means",
    })),
  ];
  const hasMeans = ({ entry }) => entry.head_numbers.length !== 1;  // means over the heads of a layer are known
  const isSingle = runs.every(({ entry }) => same(entry, runs[0].entry));
  let now = null; // {a, b: {run, layer, head}, step, query, mode, fields: the drawn weights}
  let requests = 0;

  const points = ({ run, layer }) => run.points.filter((point) => point.layers.includes(layer));
  const pointAt = (spot, at) => points(spot).find((point) => point.step === at) ?? points(spot).at(-1);
  const field = (spot, at) =>
    drawing.field(spot.run.entry, pointAt(spot, at), spot.layer, spot.head === MEAN ? null : spot.head, nofirst.checked);
  const last = (spot) => spot.run.points.at(-1).step;

  const comparable = (one, other) => one.entry.length === other.entry.length
    && one.entry.tokens.every((token, i) => token === other.entry.tokens[i]);

  // The nearest existing head to the requested one.
  function spot(run, layer, head) {
    const { layers, head_numbers: heads } = run.entry;
    const near = layers.includes(layer) ? layer : layers[Math.max(0, Math.min(layers.length - 1, layer))] ?? layers[0];
    const mean = head === MEAN ? hasMeans(run) : !heads.length;
    return { run, layer: near, head: mean ? MEAN : heads.includes(head) ? head : heads[Math.max(0, Math.min(heads.length - 1, head))] ?? heads[0] };
  }
  function find(arm, seed, layer, head) {
    const inside = runs.filter(({ entry }) => entry.arm === arm && (seed === null || entry.seed === seed));
    const has = (run) => run.entry.layers.includes(layer) && (head === MEAN ? hasMeans(run) : run.entry.head_numbers.includes(head));
    const run = inside.find(has) ?? inside[0];
    return run && spot(run, layer, head);
  }

  const describe = ({ run, layer, head }, at) => `${run.entry.arm}, seed ${run.entry.seed}, layer ${layer}, `
    + (head === MEAN ? "mean of its heads" : `head ${head}`) + (at === undefined || points({ run, layer }).length < 2 ? "" : `, after ${at} steps`);
  const headOf = ({ run, layer, head }) => [run.entry.layers.indexOf(layer), run.entry.head_numbers.indexOf(head)];

  function fill(select, options, chosen) {
    select.replaceChildren(...options.map(([value, words]) => new Option(words, value, false, value === chosen)));
    select.value = chosen;
  }
  function updateControls() {
    const { a, b } = now, numbers = ({ run }) => [
      ...run.entry.head_numbers.map((number) => [String(number), String(number)]), ...(hasMeans(run) ? [[MEAN, "mean of its heads"]] : [])];
    run.value = runs.indexOf(a.run);
    fill(layer, a.run.entry.layers.map((n) => [String(n), String(n)]), String(a.layer));
    fill(head, numbers(a), String(a.head));
    mode.value = now.mode;
    for (const box of [run2, layer2, head2]) box.parentElement.hidden = !now.mode;
    if (now.mode) {
      [...run2.options].forEach((option) => { option.disabled = !comparable(a.run, runs[option.value]); });
      run2.value = runs.indexOf(b.run);
      fill(layer2, b.run.entry.layers.map((n) => [String(n), String(n)]), String(b.layer));
      fill(head2, numbers(b), String(b.head));
    }
    const knownPoints = points(a);
    steps.hidden = knownPoints.length < 2;
    step.max = knownPoints.length - 1;
    step.value = knownPoints.indexOf(pointAt(a, now.step));
    step.nextElementSibling.textContent = `${pointAt(a, now.step).step} of ${last(a)} steps`;
    step.setAttribute("aria-valuetext", step.nextElementSibling.textContent);
    over.nextElementSibling.textContent = (+over.value).toFixed(2);
    over.parentElement.hidden = kind.value === "map";
  }

  function warning() {
    const { a, b } = now, apart = now.mode && !same(a.run.entry, b.run.entry), means = now.mode && a.head === MEAN && b.head === MEAN;
    const less = "Blue: less than in the second; orange: more. ";
    if (now.mode === "difference" && means) return less + (apart
      ? "Layer means are compared, because head numbers do not correspond across runs. The difference between two seeds of one arm is the noise level for a difference between arms."
      : "Means of two layers of one run.");
    if (now.mode === "difference") return less + (apart
      ? "You paired these two heads: head numbers do not correspond across runs, so another pair may differ as much. Layer means do not depend on the pairing."
      : "Two heads of one run.");
    return apart && !means ? "Head numbers do not correspond across runs: these two heads are not a matched pair." : "";
  }

  function draw() {
    const { fields, query } = now, shown = now.mode === "beside" ? fields : [fields.at(-1)], lined = kind.value !== "map", mapped = kind.value !== "lines";
    const room = view.clientWidth - 34, each = shown.length > 1 ? (room - 24) / 2 : room;
    const size = drawing.layout(fields[0], mapped && lined && shown.length < 2 && room > 900 ? room - LINES - 24 : each);
    const top = rescale.checked ? Math.max(...shown.map(drawing.maxWeight)) : 1;
    panels.forEach((panel, i) => {
      panel.hidden = i >= shown.length;
      if (panel.hidden) return;
      const [rows, map, drawn] = panel.querySelectorAll("canvas"), of = [now.a, now.b][i];
      panel.firstElementChild.textContent = now.mode === "difference" ? `${describe(now.a, pointAt(now.a, now.step).step)} minus ${describe(now.b, pointAt(now.b, now.step).step)}`
        : now.mode ? describe(of, pointAt(of, now.step).step) : "";
      Object.assign(map.dataset, size);
      map.parentElement.hidden = !mapped;
      drawn.hidden = !lined;
      if (mapped) drawing.map(map, rows, shown[i], size, query, top);
      if (lined) drawing.lines(drawn, shown[i], size, query, top, over.value * top, Math.min(LINES, room));
      map.setAttribute("aria-label", `Attention map of ${panel.firstElementChild.textContent || title.textContent}`);
      drawn.setAttribute("aria-label", `The same as lines: ${query === null ? `all over ${over.value}` : `of query ${query}`}`);
    });
    drawing.shade(text, shown[0], query, top);
    const [low, scale, high] = view.querySelectorAll(".ends > *"), signed = shown[0].signed, end = top.toFixed(rescale.checked ? 3 : 0);
    low.textContent = signed ? `−${end}` : "0";
    high.textContent = signed ? `+${end}` : end;
    scale.className = signed ? "scale signed" : "scale";
    scale.setAttribute("aria-label", signed ? "Scale of a difference: blue below zero, orange above" : "Scale from 0, dark blue, to the largest, yellow");
  }

  function updateAddress() {
    const { a, b, query } = now, place = ({ run, layer, head }) => [encodeURIComponent(run.entry.arm), layer, head].join("/");
    const hash = "#head=" + place(a) + (runs.indexOf(a.run) < data.maps.length ? "" : "&seed=" + a.run.entry.seed)
      + (now.step === last(a) ? "" : "&step=" + now.step) + (query === null ? "" : "&q=" + query)
      + (now.mode ? `&beside=${place(b)}/${b.run.entry.seed}` : "") + (now.mode === "difference" ? "&difference" : "")
      + (kind.value === "both" ? "" : "&view=" + kind.value) + (+over.value === OVER ? "" : "&over=" + over.value)
      + (rescale.checked ? "&rescale" : "") + (nofirst.checked ? "&nofirst" : "");
    if (location.protocol !== "about:" && location.hash !== hash) history.replaceState(null, "", hash);
  }

  // The selected query with its three strongest keys, for those who cannot point at a cell.
  function describeQuery() {
    const { a, b, query, mode } = now, spots = mode === "beside" ? [a, b] : [a];
    const names = mode === "difference" ? [`${describe(a)} minus ${describe(b)}`] : spots.map((spot) => describe(spot));
    if (query === null) return `${names.join("; ")}. ${HELP}`;
    return names.map((name, i) => {
      const field = now.fields[i], { n, tokens, V, W } = field, label = (at) => `"${drawing.displayToken(tokens[at])}"`;
      const weight = (k) => Math.abs(W[query * n + k]), keys = [...Array(n).keys()].filter((k) => V[query * n + k]);
      const strongest = keys.sort((k, other) => weight(other) - weight(k)).slice(0, 3);
      return `${name}: q${query} ${label(query)} → ${strongest.map((k) => `k${k} ${label(k)} ${formatWeight(field, query, k)}`).join(", ")}`;
    }).join("; ");
  }
  function formatWeight({ n, W, signed }, query, key) {
    const weight = W[query * n + key];
    return (signed && weight > 0 ? "+" : "") + weight.toFixed(3).replace(/^-/, "−");
  }

  function updateText() {
    const { entry } = now.a.run, [row, column] = headOf(now.a), names = column >= 0 && entry.patterns.length ? entry.patterns[row][column] : [];
    title.textContent = describe(now.a) + (column < 0 ? "" : ` (KV group ${entry.groups[row][column]})`) + (names.length ? ": " + names.join(", ") : "");
    readout.textContent = describeQuery();
    caution.textContent = warning();
    const listed = column < 0 ? [] : data.scores.filter(({ name }) => entry.scores[name]);
    table.hidden = !listed.length;
    table.tBodies[0].replaceChildren(...listed.map(({ name, label, chance }) => {
      const line = document.createElement("tr"), first = document.createElement("th");
      first.scope = "row";
      first.textContent = label;
      line.append(first, ...[entry.scores[name][row][column], chance[entry.arm]].map((value) => {
        const cell = document.createElement("td");
        cell.className = "num";
        cell.textContent = typeof value === "number" ? value.toFixed(3) : "–";
        return cell;
      }));
      return line;
    }));
    document.querySelectorAll(".head button").forEach((button) => {
      const d = button.parentElement.dataset;
      button.setAttribute("aria-pressed", d.arm === entry.arm && +d.seed === entry.seed && +d.layer === now.a.layer && +d.head === now.a.head);
    });
    if (text.dataset.of === JSON.stringify(entry.tokens)) return;
    text.dataset.of = JSON.stringify(entry.tokens);
    text.replaceChildren(...entry.tokens.map((token) => {
      const span = document.createElement("span");
      span.textContent = token.replace(/\n/g, "⏎\n");
      span.setAttribute("role", "button");
      if (!token.trim()) span.setAttribute("aria-label", { " ": "space", "\n": "line end", "\t": "tab" }[token] ?? "spaces");
      return span;
    }));
  }

  // Apply `change`, a part of {a, b, step, query, mode}. Of two concurrent changes the later one wins.
  async function show(change, { keep = true, scroll = false } = {}) {
    const turn = ++requests, next = { b: null, step: null, query: null, mode: "", ...now, ...change };
    if (next.mode && (!next.b || !comparable(next.a.run, next.b.run))) next.b = chooseSecond(next);
    if (!next.b) next.mode = "";
    if (next.step === null || !points(next.a).some((point) => point.step === next.step)) next.step = last(next.a);
    next.query = next.query === null ? null : Math.max(0, Math.min(next.a.run.entry.length - 1, next.query));
    const fields = [await field(next.a, next.step), ...(next.mode ? [await field(next.b, next.step)] : [])];
    if (turn !== requests) return;
    now = { ...next, fields: next.mode === "difference" ? [drawing.difference(...fields)] : fields };
    view.hidden = false;
    updateText();
    updateControls();
    draw();
    if (keep) updateAddress();
    if (scroll) view.scrollIntoView({ block: "start" });
  }
  function chooseSecond({ a, mode }) {
    const others = runs.filter((one) => one !== a.run && comparable(one, a.run)), other = others.find((one) => one.entry.layers.includes(a.layer));
    return other ? spot(other, a.layer, a.head) : spot(a.run, a.layer, a.run.entry.head_numbers.find((n) => n !== a.head) ?? MEAN);
  }

  function restore() {
    const match = location.hash.match(/^#head=([^/]+)\/(\d+)\/(\d+|mean)((?:&[^&]+)*)$/);
    if (!match) return false;
    let arm;
    try { arm = decodeURIComponent(match[1]); } catch { return false; }
    const options = new URLSearchParams(match[4]), number = (key) => (options.get(key) ? +options.get(key) || 0 : null);
    const parseHead = (word) => (word === MEAN ? MEAN : +word), a = find(arm, number("seed"), +match[2], parseHead(match[3]));
    if (!a) return false;
    rescale.checked = options.has("rescale");
    nofirst.checked = options.has("nofirst");
    kind.value = ["map", "lines"].includes(options.get("view")) ? options.get("view") : "both";
    over.value = number("over") ?? OVER;
    const beside = (options.get("beside") ?? "").match(/^(.+)\/(\d+)\/(\d+|mean)\/(-?\d+)$/);
    const b = beside && !isSingle ? find(beside[1], +beside[4], +beside[2], parseHead(beside[3])) ?? null : null;
    show({ a, b, step: number("step"), query: number("q"), mode: b ? (options.has("difference") ? "difference" : "beside") : "" }, { scroll: true });
    return true;
  }

  for (const select of [run, run2]) for (const arm of new Set(runs.map(({ entry }) => entry.arm))) {
    const group = document.createElement("optgroup"), inside = [...runs.entries()].filter(([, { entry }]) => entry.arm === arm);
    group.label = arm;
    inside.sort(([, one], [, other]) => one.entry.seed - other.entry.seed);  // stable: a run precedes its single heads
    group.append(...inside.map(([n, { entry, part }]) => new Option(`${arm}, seed ${entry.seed}${part}`, n)));
    select.append(group);
  }
  mode.closest("fieldset").hidden = isSingle;
  const read = (select) => (select.value === MEAN ? MEAN : +select.value);
  for (const box of [run, layer, head]) box.addEventListener("change", () => show({ a: spot(runs[run.value], +layer.value, read(head)) }));
  for (const box of [run2, layer2, head2]) box.addEventListener("change", () => show({ b: spot(runs[run2.value], +layer2.value, read(head2)) }));
  mode.addEventListener("change", () => {
    const means = mode.value === "difference" && (!now.b || !same(now.a.run.entry, now.b.run.entry)) && hasMeans(now.a.run);
    const a = means ? spot(now.a.run, now.a.layer, MEAN) : now.a, b = now.b ?? chooseSecond({ a });
    show({ a, b: means && hasMeans(b.run) ? spot(b.run, b.layer, MEAN) : b, mode: mode.value });
  });
  step.addEventListener("input", () => show({ step: points(now.a)[step.value].step }));
  for (const box of [kind, over, rescale, nofirst]) box.addEventListener("input", () => show({}));

  for (const holder of document.querySelectorAll(".head")) {
    const button = document.createElement("button"), d = holder.dataset;
    button.type = "button";
    button.append(holder.querySelector("img"));
    button.addEventListener("click", async () => {
      await show({ a: find(d.arm, +d.seed, +d.layer, +d.head) }, { scroll: true });
      canvas.focus({ preventScroll: true });
    });
    holder.prepend(button);
  }

  const choose = (query) => show({ query });
  const clamp = (query) => Math.max(0, Math.min(now.a.run.entry.length - 1, query));
  for (const [i, panel] of panels.entries()) {
    const [, map, drawn] = panel.querySelectorAll("canvas");
    const under = (event) => {
      const { cell, gap } = map.dataset, n = now.fields[0].n, q = Math.floor((event.offsetY - gap) / cell), k = Math.floor(event.offsetX / cell);
      return q >= 0 && q < n && k >= 0 && k < n ? [q, k] : null;
    };
    map.addEventListener("pointermove", (event) => {
      const at = under(event);
      tip.hidden = !at;
      if (!at) return;
      const field = now.fields[Math.min(i, now.fields.length - 1)], { n, tokens, V } = field, [q, k] = at;
      const value = V[q * n + k] ? formatWeight(field, q, k) : "masked";
      tip.textContent = readout.textContent = `(q${q} "${drawing.displayToken(tokens[q])}" → k${k} "${drawing.displayToken(tokens[k])}") ${value}`;
      const { clientX, clientY } = event, right = document.documentElement.clientWidth - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(4, Math.min(clientX + 12, right))}px`;
      tip.style.top = `${clientY + 18 + tip.offsetHeight < innerHeight ? clientY + 18 : clientY - 10 - tip.offsetHeight}px`;
    });
    map.addEventListener("pointerleave", () => { tip.hidden = true; });
    map.addEventListener("click", (event) => { const at = under(event); if (at) choose(at[0] === now.query ? null : at[0]); });
    drawn.addEventListener("click", (event) => {
      const q = Math.floor((event.offsetY - map.dataset.gap) / map.dataset.cell);
      if (q >= 0 && q < now.fields[0].n) choose(q === now.query ? null : q);
    });
    map.addEventListener("keydown", (event) => {
      const turn = { PageUp: -1, PageDown: 1 }[event.key];
      const to = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!turn && !to) return;
      event.preventDefault();
      if (turn) { choose(now.query === null ? (turn > 0 ? 0 : now.fields[0].n - 1) : clamp(now.query + turn)); return; }
      const which = i ? "b" : "a", at = now[which], { layers, head_numbers: heads } = at.run.entry, [row, column] = headOf(at);
      const inside = (list, n) => list[Math.max(0, Math.min(list.length - 1, n))];
      show({ [which]: spot(at.run, inside(layers, row + to[0]), at.head === MEAN && !to[1] ? MEAN : inside(heads, column + to[1]) ?? MEAN) });
    });
  }
  text.addEventListener("click", (event) => {
    const k = [...text.children].indexOf(event.target);
    if (k >= 0) choose(k === now.query ? null : k);
  });
  text.addEventListener("keydown", async (event) => {
    const k = [...text.children].indexOf(event.target), to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: Infinity }[event.key];
    if (k < 0 || (to === undefined && !["Enter", " ", "Escape"].includes(event.key))) return;
    event.preventDefault();
    if (to === undefined) { choose(event.key === "Escape" || k === now.query ? null : k); return; }
    await choose(clamp(to));
    text.children[now.query].focus();
  });
  addEventListener("hashchange", restore);
  addEventListener("resize", () => { if (now) draw(); });
  matchMedia("screen and (prefers-color-scheme: dark)").addEventListener("change", () => { if (now) draw(); });
  const { arm, seed, layer: first, head: number } = data.start ?? { ...data.maps[0], layer: data.maps[0].layers[0], head: data.maps[0].head_numbers[0] };
  if (!restore()) show({ a: find(arm, seed, first, number ?? MEAN) }, { keep: false });
})();
