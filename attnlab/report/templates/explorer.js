"use strict";
// One head, large: click a thumbnail or open #head=arm/layer/head. The maps come packed in the page's own data.
(() => {
  const view = document.getElementById("head-view");
  const maps = JSON.parse(document.getElementById("data").textContent).maps;
  if (!view || !maps.length) return;
  const [canvas, readout, title, arms] = ["canvas", "[role=status]", "h4", "select"].map((s) => view.querySelector(s));
  const [rescale, hideFirst] = view.querySelectorAll("input");
  const stops = getComputedStyle(view).getPropertyValue("--cividis").match(/[0-9a-f]{6}/gi)
    .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const colours = Array.from({ length: 256 }, (_, v) => {
    const at = (v / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return "rgb(" + stops[low].map((c, i) => Math.round(c + (at - low) * (stops[low + 1][i] - c))).join() + ")";
  });
  let now = null; // {map, layer, row: its place in map.layers, head, cell, left, top}

  async function bytes(text) {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  async function opened(map) {
    map.bytes ??= await bytes(map.weights);
    map.bits ??= await bytes(map.visible);
    return map;
  }
  const cells = (map) => (map.triangle ? (map.length * (map.length + 1)) / 2 : map.length * map.length);
  const place = (map, q, k) => (map.triangle ? (k > q ? -1 : (q * (q + 1)) / 2 + k) : q * map.length + k);
  function visible({ map, row }, q, k) {
    const at = place(map, q, k);
    if (at < 0) return false;
    const bit = row * cells(map) + at;
    return Boolean((map.bits[bit >> 3] >> (7 - (bit & 7))) & 1);
  }
  function raw({ map, row, head }, q, k) {
    const at = place(map, q, k);
    return at < 0 ? 0 : (map.bytes[(row * map.heads + head) * cells(map) + at] / 255) ** 2;
  }
  function weight(spot, q, k) {
    if (!hideFirst.checked) return raw(spot, q, k);
    const rest = 1 - raw(spot, q, 0);
    return k === 0 || rest < 1e-4 ? 0 : Math.min(1, raw(spot, q, k) / rest);
  }
  const shown = (token) => token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");

  function draw() {
    const { map } = now, n = map.length, style = getComputedStyle(view);
    const room = Math.min(view.clientWidth - 34, 760);
    let cell = Math.max(2, Math.min(18, Math.floor((room - 8) / n)));
    const labels = Math.floor((room - 90) / n) >= 9;
    const gap = labels ? 80 : 4;
    if (labels) cell = Math.min(18, Math.floor((room - 90) / n));
    Object.assign(now, { cell, left: gap, top: gap });
    const scale = devicePixelRatio || 1, side = gap + n * cell + 2;
    canvas.width = canvas.height = side * scale;
    canvas.style.width = canvas.style.height = side + "px";
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.font = Math.min(11, cell) + "px ui-monospace, Menlo, Consolas, monospace";
    c.fillStyle = style.color;
    c.textBaseline = "middle";
    if (labels) map.tokens.forEach((token, i) => {
      const text = shown(token).slice(0, 10), at = gap + (i + 0.5) * cell;
      c.textAlign = "right";
      c.fillText(text, gap - 5, at);
      c.save(); c.translate(at, gap - 5); c.rotate(-Math.PI / 2); c.textAlign = "left"; c.fillText(text, 0, 0); c.restore();
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
        c.fillStyle = colours[Math.round(255 * Math.sqrt(Math.min(1, weight(now, q, k) / most)))];
        c.fillRect(x, y, cell, cell);
      } else if ((q + k) % 3 === 0) {
        c.beginPath(); c.moveTo(x, y + cell); c.lineTo(x + cell, y); c.stroke();
      }
    }
  }

  async function open(arm, layer, head, scroll) {
    const map = maps.find((one) => one.arm === arm);
    if (!map) return;
    const row = Math.max(0, map.layers.indexOf(layer));
    layer = map.layers[row];
    head = Math.max(0, Math.min(map.heads - 1, head));
    await opened(map);
    now = { map, layer, row, head };
    view.hidden = false;
    arms.value = arm;
    title.textContent = `${arm}, layer ${layer}, head ${head} (KV group ${map.groups[row][head]})`;
    canvas.setAttribute("aria-label", `Attention map of ${title.textContent}`);
    readout.textContent = "Point at a cell to read it. Arrow keys change head and layer.";
    document.querySelectorAll(".head button").forEach((button) => {
      const d = button.parentElement.dataset;
      button.setAttribute("aria-pressed", d.arm === arm && +d.layer === layer && +d.head === head);
    });
    draw();
    const hash = "#head=" + [encodeURIComponent(arm), layer, head].join("/");
    if (location.hash !== hash) history.replaceState(null, "", hash);
    if (scroll) view.scrollIntoView({ block: "start" });
  }
  function restore() {
    const found = location.hash.match(/^#head=([^/]+)\/(\d+)\/(\d+)$/);
    if (found) open(decodeURIComponent(found[1]), +found[2], +found[3], true);
  }

  for (const map of maps) arms.add(new Option(`${map.arm}, seed ${map.seed}`, map.arm));
  arms.addEventListener("change", () => open(arms.value, now.layer, now.head));
  for (const box of [rescale, hideFirst]) box.addEventListener("change", draw);
  for (const holder of document.querySelectorAll(".head")) {
    const button = document.createElement("button"), d = holder.dataset;
    button.type = "button";
    button.append(holder.querySelector("img"));
    button.addEventListener("click", () => { open(d.arm, +d.layer, +d.head, true); canvas.focus({ preventScroll: true }); });
    holder.prepend(button);
  }
  canvas.addEventListener("pointermove", (event) => {
    const q = Math.floor((event.offsetY - now.top) / now.cell), k = Math.floor((event.offsetX - now.left) / now.cell);
    const { map } = now;
    if (q < 0 || k < 0 || q >= map.length || k >= map.length) return;
    const value = visible(now, q, k) ? weight(now, q, k).toFixed(3) : "masked";
    readout.textContent = `(q${q} "${shown(map.tokens[q])}" → k${k} "${shown(map.tokens[k])}") ${value}`;
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const layers = now.map.layers, row = Math.max(0, Math.min(layers.length - 1, now.row + step[0]));
    open(now.map.arm, layers[row], now.head + step[1]);
  });
  addEventListener("hashchange", restore);
  addEventListener("resize", () => { if (now) draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (now) draw(); });
  restore();
})();
