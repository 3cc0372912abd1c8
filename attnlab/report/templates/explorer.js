"use strict";
// One head, large: click a thumbnail or open #head=arm/layer/head. The maps come packed in the page's own data.
(() => {
  const view = document.getElementById("head-view");
  const { maps, picked, scores } = JSON.parse(document.getElementById("data").textContent);
  if (!view || !maps.length) return;
  const [canvas, readout, title, arms, text, table] =
    ["canvas", "[role=status]", "h4", "select", ".text", "table"].map((s) => view.querySelector(s));
  const [rescale, hideFirst] = view.querySelectorAll("input");
  const stops = getComputedStyle(view).getPropertyValue("--cividis").match(/[0-9a-f]{6}/gi)
    .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const colours = Array.from({ length: 256 }, (_, v) => {
    const at = (v / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return "rgb(" + stops[low].map((c, i) => Math.round(c + (at - low) * (stops[low + 1][i] - c))).join() + ")";
  });
  let now = null; // {map, layer, row: its place in map.layers, head, column: its place in map.head_numbers, query, cell, gap}

  async function bytes(packed) {
    const stream = new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))]).stream()
      .pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const cells = (map) => (map.triangle ? (map.length * (map.length + 1)) / 2 : map.length * map.length);
  const place = (map, q, k) => (map.triangle ? (k > q ? -1 : (q * (q + 1)) / 2 + k) : q * map.length + k);
  function visible({ map, row }, q, k) {
    const at = place(map, q, k);
    if (at < 0) return false;
    const bit = row * cells(map) + at;
    return Boolean((map.bits[bit >> 3] >> (7 - (bit & 7))) & 1);
  }
  function raw({ map, row, column }, q, k) {
    const at = place(map, q, k);
    return at < 0 ? 0 : (map.bytes[(row * map.heads + column) * cells(map) + at] / 255) ** 2;
  }
  function weight(spot, q, k) {
    if (!hideFirst.checked) return raw(spot, q, k);
    const rest = 1 - raw(spot, q, 0);
    return k === 0 || rest < 1e-4 ? 0 : Math.min(1, raw(spot, q, k) / rest);
  }
  const shown = (token) => token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
  const shade = (share) => Math.round(255 * Math.sqrt(Math.min(1, share)));

  function draw() {
    const { map, query } = now, n = map.length, style = getComputedStyle(view);
    const room = Math.min(view.clientWidth - 34, 620);
    const labels = Math.floor((room - 90) / n) >= 9, gap = labels ? 80 : 4;
    const cell = Math.max(2, Math.min(18, Math.floor((room - gap - 6) / n)));
    Object.assign(now, { cell, gap });
    const scale = devicePixelRatio || 1, side = gap + n * cell + 2;
    canvas.width = canvas.height = side * scale;
    canvas.style.width = canvas.style.height = side + "px";
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.font = Math.min(11, cell) + "px ui-monospace, Menlo, Consolas, monospace";
    c.fillStyle = style.color;
    c.textBaseline = "middle";
    if (labels) map.tokens.forEach((token, i) => {
      const word = shown(token).slice(0, 10), at = gap + (i + 0.5) * cell;
      c.textAlign = "right";
      c.fillText(word, gap - 5, at);
      c.save(); c.translate(at, gap - 5); c.rotate(-Math.PI / 2); c.textAlign = "left"; c.fillText(word, 0, 0); c.restore();
    });
    let most = 1;
    if (rescale.checked) {
      most = 1e-6;
      for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) most = Math.max(most, weight(now, q, k));
    }
    c.strokeStyle = style.getPropertyValue("--muted");
    c.lineWidth = 0.7;
    for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) {
      const x = gap + k * cell, y = gap + q * cell;
      if (visible(now, q, k)) {
        c.fillStyle = colours[shade(weight(now, q, k) / most)];
        c.fillRect(x, y, cell, cell);
      } else if ((q + k) % 3 === 0) {
        c.beginPath(); c.moveTo(x, y + cell); c.lineTo(x + cell, y); c.stroke();
      }
    }
    if (query !== null) {
      c.strokeStyle = style.getPropertyValue("--link");
      c.lineWidth = 2;
      c.strokeRect(gap - 1, gap + query * cell - 1, n * cell + 2, cell + 2);
    }
    [...text.children].forEach((span, k) => {
      const seen = query !== null && visible(now, query, k), value = seen ? shade(weight(now, query, k) / most) : 0;
      span.style.background = seen ? colours[value] : "";
      span.style.color = seen ? (value > 140 ? "#000" : "#fff") : "";
      span.className = k === query ? "query" : "";
      span.title = seen ? weight(now, query, k).toFixed(3) : "";
    });
  }

  function remember() {
    const { map, layer, head, query } = now;
    const hash = "#head=" + [encodeURIComponent(map.arm), layer, head].join("/") + (maps.includes(map) ? "" : "&seed=" + map.seed)
      + (query === null ? "" : "&q=" + query) + (rescale.checked ? "&rescale" : "") + (hideFirst.checked ? "&nofirst" : "");
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  function say() {
    const { map, row, column } = now, names = map.patterns.length ? map.patterns[row][column] : [];
    title.textContent = `${map.arm}, seed ${map.seed}, layer ${now.layer}, head ${now.head} (KV group ${map.groups[row][column]})`
      + (names.length ? ": " + names.join(", ") : "");
    canvas.setAttribute("aria-label", `Attention map of ${title.textContent}`);
    readout.textContent = "Point at a cell to read it. Arrow keys change head and layer.";
    text.replaceChildren(...map.tokens.map((token) => {
      const span = document.createElement("span");
      span.textContent = token;
      return span;
    }));
    table.hidden = !scores.some(({ name }) => map.scores[name]);
    table.tBodies[0].replaceChildren(...scores.filter(({ name }) => map.scores[name]).map(({ name, label, chance }) => {
      const line = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row";
      head.textContent = label;
      line.append(head, ...[map.scores[name][row][column], chance].map((value) => {
        const cell = document.createElement("td");
        cell.className = "num";
        cell.textContent = typeof value === "number" ? value.toFixed(3) : "–";
        return cell;
      }));
      return line;
    }));
    document.querySelectorAll(".head button").forEach((button) => {
      const d = button.parentElement.dataset;
      button.setAttribute("aria-pressed", d.arm === map.arm && +d.seed === map.seed && +d.layer === now.layer && +d.head === now.head);
    });
  }

  async function open(arm, seed, layer, head, query, scroll) {
    const inside = (one) => one.arm === arm && (seed === null || one.seed === seed);
    const map = [...maps, ...picked].find((one) => inside(one) && one.layers.includes(layer) && one.head_numbers.includes(head))
      ?? maps.find(inside);
    if (!map) return;
    const row = Math.max(0, map.layers.indexOf(layer));
    const column = Math.max(0, Math.min(map.heads - 1, map.head_numbers.indexOf(head)));
    map.bytes ??= await bytes(map.weights);
    map.bits ??= await bytes(map.visible);
    now = { map, row, column, layer: map.layers[row], head: map.head_numbers[column],
      query: query === null ? null : Math.max(0, Math.min(map.length - 1, query)) };
    view.hidden = false;
    arms.value = maps.indexOf(map);
    say();
    draw();
    remember();
    if (scroll) view.scrollIntoView({ block: "start" });
  }
  function restore() {
    const found = location.hash.match(/^#head=([^/]+)\/(\d+)\/(\d+)((?:&[\w=]+)*)$/);
    if (!found) return;
    const options = new URLSearchParams(found[4]), number = (key) => (options.has(key) ? +options.get(key) : null);
    rescale.checked = options.has("rescale");
    hideFirst.checked = options.has("nofirst");
    open(decodeURIComponent(found[1]), number("seed"), +found[2], +found[3], number("q"), true);
  }
  const again = () => { if (now) { draw(); remember(); } };
  function choose(query) {
    now.query = query === null ? null : Math.max(0, Math.min(now.map.length - 1, query));
    again();
  }
  function under(event) {
    const at = (offset) => Math.floor((offset - now.gap) / now.cell), inside = (i) => i >= 0 && i < now.map.length;
    const q = at(event.offsetY), k = at(event.offsetX);
    return inside(q) && inside(k) ? [q, k] : null;
  }

  maps.forEach((map, i) => arms.add(new Option(`${map.arm}, seed ${map.seed}`, i)));
  arms.addEventListener("change", () => { const to = maps[arms.value]; open(to.arm, to.seed, now.layer, now.head, now.query); });
  for (const box of [rescale, hideFirst]) box.addEventListener("change", again);
  for (const holder of document.querySelectorAll(".head")) {
    const button = document.createElement("button"), d = holder.dataset;
    button.type = "button";
    button.append(holder.querySelector("img"));
    button.addEventListener("click", async () => {
      await open(d.arm, +d.seed, +d.layer, +d.head, now?.query ?? null, true);
      canvas.focus({ preventScroll: true });
    });
    holder.prepend(button);
  }
  canvas.addEventListener("pointermove", (event) => {
    const at = under(event);
    if (!at) return;
    const [q, k] = at, value = visible(now, q, k) ? weight(now, q, k).toFixed(3) : "masked";
    readout.textContent = `(q${q} "${shown(now.map.tokens[q])}" → k${k} "${shown(now.map.tokens[k])}") ${value}`;
  });
  canvas.addEventListener("click", (event) => { const at = under(event); if (at) choose(at[0] === now.query ? null : at[0]); });
  text.addEventListener("click", (event) => {
    const k = [...text.children].indexOf(event.target);
    if (k >= 0) choose(k === now.query ? null : k);
  });
  canvas.addEventListener("keydown", (event) => {
    const turn = { PageUp: -1, PageDown: 1 }[event.key];
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!turn && !step) return;
    event.preventDefault();
    if (turn) { choose(now.query === null ? (turn > 0 ? 0 : now.map.length - 1) : now.query + turn); return; }
    const to = (list, i) => list[Math.max(0, Math.min(list.length - 1, i))], { map } = now;
    open(map.arm, map.seed, to(map.layers, now.row + step[0]), to(map.head_numbers, now.column + step[1]), now.query);
  });
  addEventListener("hashchange", restore);
  addEventListener("resize", () => { if (now) draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (now) draw(); });
  restore();
})();
