"use strict";
// Unpack a field of weights and draw it as a map, as lines or as shades of a text. A field is {n, tokens, W, V, signed}:
// W are weights and V visible cells, [query, key]; signed: W is a difference, from -1 to 1.
const drawing = (() => {
  const view = document.getElementById("head-view"), FONT = "px ui-monospace, Menlo, Consolas, monospace";
  if (!view) return null;
  const style = getComputedStyle(view), value = (name) => style.getPropertyValue(name);
  const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const stops = value("--cividis").match(/[0-9a-f]{6}/gi).map(rgb);
  const mixColors = (a, b, fraction) => a.map((part, i) => Math.round(part + fraction * (b[i] - part)));
  const css = (color) => `rgb(${color.join()})`;
  const dark = (color) => color[0] * 0.3 + color[1] * 0.59 + color[2] * 0.11 < 140;

  // Square-root scale for both palettes; `top` is the weight of the last color.
  function createPalette(top, signed) {
    const [zero, less, more] = ["--zero", "--less", "--more"].map((name) => rgb(value(name).trim().slice(1)));
    return (weight) => {
      const fraction = Math.sqrt(Math.min(1, Math.abs(weight) / top));
      if (signed) return mixColors(zero, weight < 0 ? less : more, fraction);
      const at = fraction * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      return mixColors(stops[low], stops[low + 1], at - low);
    };
  }

  async function bytes(packed) {
    const stream = new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))]).stream()
      .pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // One head of a layer, or with head null the mean of all; with `hide` the first key is dropped and rows sum to one again.
  async function field(entry, point, layer, head, hide) {
    point.bytes ??= await bytes(point.weights);
    entry.bits ??= await bytes(entry.visible);
    const n = entry.length, cells = entry.triangle ? (n * (n + 1)) / 2 : n * n, heads = Math.max(1, entry.head_numbers.length);
    const row = point.layers.indexOf(layer), seen = entry.layers.indexOf(layer) * cells;
    const columns = head === null ? [...Array(heads).keys()] : [entry.head_numbers.indexOf(head)];
    const W = new Float32Array(n * n), V = new Uint8Array(n * n);
    for (let q = 0, at = 0; q < n; q++) for (let k = 0; k < (entry.triangle ? q + 1 : n); k++, at++) {
      V[q * n + k] = (entry.bits[(seen + at) >> 3] >> (7 - ((seen + at) & 7))) & 1;
      for (const column of columns) W[q * n + k] += (point.bytes[(row * heads + column) * cells + at] / 255) ** 2 / columns.length;
    }
    if (hide) for (let q = 0; q < n; q++) {
      W[q * n] = 0;
      const rest = W.subarray(q * n, (q + 1) * n).reduce((sum, weight) => sum + weight, 0);
      for (let k = 1; k < n; k++) W[q * n + k] = rest < 1e-4 ? 0 : Math.min(1, W[q * n + k] / rest);
    }
    return { n, tokens: entry.tokens, W, V, signed: false };
  }

  function difference(a, b) {
    return { ...a, W: a.W.map((weight, i) => weight - b.W[i]), V: a.V.map((seen, i) => seen & b.V[i]), signed: true };
  }

  function maxWeight(field) {
    return field.W.reduce((top, weight) => Math.max(top, Math.abs(weight)), 1e-6);
  }

  const displayToken = (token) => token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
  const labelsOf = (field) => field.tokens.map((token) => displayToken(token).slice(0, 10));

  function prepareCanvas(canvas, wide, high) {
    const scale = Math.min(devicePixelRatio || 1, 8000 / Math.max(wide, high));
    canvas.width = wide * scale;
    canvas.height = high * scale;
    canvas.style.width = wide + "px";
    canvas.style.height = high + "px";
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.textBaseline = "middle";
    c.fillStyle = style.color;
    return c;
  }

  // Pixels of a cell and of the labels for a map of width `room`. With up to 160 tokens cells stay large enough for
  // labels, and the map scrolls in its own box instead.
  function layout(field, room) {
    const c = document.createElement("canvas").getContext("2d");
    c.font = 11 + FONT;
    const wide = Math.min(80, Math.ceil(Math.max(...labelsOf(field).map((word) => c.measureText(word).width))) + 8);
    const cell = Math.max(field.n > 160 ? 2 : 8, Math.min(18, Math.floor((room - wide - 4) / field.n)));
    return { cell, gap: cell < 8 ? 4 : wide };
  }

  function map(canvas, rows, field, { cell, gap }, query, top) {
    const { n, W, V, signed } = field, labels = cell >= 8, side = n * cell + 2, names = labelsOf(field);
    const color = createPalette(top, signed), c = prepareCanvas(canvas, side, gap + side), left = prepareCanvas(rows, gap, gap + side);
    c.font = left.font = Math.min(11, cell + 1) + FONT;
    left.textAlign = "right";
    canvas.parentElement.style.setProperty("--columns", `${gap}fr ${side}fr`);
    canvas.parentElement.style.setProperty("--width", `${gap + side}px`);
    const upright = names.every((word) => word.length < 2);
    if (labels) names.forEach((word, i) => {
      const at = (i + 0.5) * cell;
      left.fillText(word, gap - 4, gap + at);
      c.save();
      c.translate(at, gap - 4);
      if (upright) c.translate(0, -5); else c.rotate(-Math.PI / 2);
      c.textAlign = upright ? "center" : "left";
      c.fillText(word, 0, 0);
      c.restore();
    });
    c.strokeStyle = value("--muted");
    c.lineWidth = 0.7;
    for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) {
      const x = k * cell, y = gap + q * cell;
      if (V[q * n + k]) {
        c.fillStyle = css(color(W[q * n + k]));
        c.fillRect(x, y, cell, cell);
      } else if (labels && (q + k) % 3 === 0) {
        c.beginPath(); c.moveTo(x, y + cell); c.lineTo(x + cell, y); c.stroke();
      }
    }
    if (query === null) return;
    c.strokeStyle = value("--link");
    c.lineWidth = 2;
    c.strokeRect(1, gap + query * cell - 1, n * cell, cell + 2);
  }

  // Queries left, keys right: all lines of one query, or the lines of all queries with a weight of `over` or more.
  function lines(canvas, field, { cell, gap }, query, top, over, wide) {
    const { n, W, V, signed } = field, label = cell < 8 ? 4 : Math.min(gap, wide / 3), names = labelsOf(field);
    const c = prepareCanvas(canvas, wide, gap + n * cell + 2), y = (i) => gap + (i + 0.5) * cell;
    const ink = signed ? { less: value("--less"), more: value("--more") } : { less: "", more: value("--link") };
    c.font = Math.min(11, cell + 1) + FONT;
    for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) {
      const weight = W[q * n + k], strong = Math.abs(weight);
      if (!V[q * n + k] || (query === null ? strong < over : q !== query || strong < 0.005)) continue;
      c.globalAlpha = Math.max(0.12, Math.sqrt(Math.min(1, strong / top)));
      c.lineWidth = 0.6 + 3.4 * Math.min(1, strong / top);
      c.strokeStyle = weight < 0 ? ink.less : ink.more;
      c.beginPath(); c.moveTo(label, y(q)); c.lineTo(wide - label, y(k)); c.stroke();
    }
    c.globalAlpha = 1;
    if (cell >= 8) names.forEach((word, i) => {
      c.fillStyle = i === query ? value("--link") : style.color;
      c.textAlign = "right"; c.fillText(word, label - 4, y(i));
      c.fillStyle = style.color;
      c.textAlign = "left"; c.fillText(word, wide - label + 4, y(i));
    });
    c.fillStyle = value("--muted");
    c.textAlign = "left"; c.fillText("query", 0, Math.max(5, gap / 2));
    c.textAlign = "right"; c.fillText("key", wide, Math.max(5, gap / 2));
  }

  function shade(text, field, query, top) {
    const color = createPalette(top, field.signed);
    [...text.children].forEach((span, k) => {
      const at = query * field.n + k, seen = query !== null && field.V[at];
      const fill = seen ? color(field.W[at]) : null;
      span.style.background = seen ? css(fill) : "";
      span.style.color = seen ? (dark(fill) ? "#fff" : "#000") : "";
      span.classList.toggle("query", k === query);
      span.setAttribute("aria-pressed", k === query);
      span.tabIndex = k === (query ?? 0) ? 0 : -1;
      span.title = seen ? field.W[at].toFixed(3) : "";
    });
  }

  return { difference, field, layout, lines, map, maxWeight, shade, displayToken };
})();
