"use strict";
// A control per chart that saves it as SVG or PNG. A saved chart stands alone: the values of the light scheme replace CSS variables.
(() => {
  const root = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).find((rule) => rule.selectorText === ":root").style;
  const light = (name) => root.getPropertyValue(name).trim();
  const clean = (name) => name.replace(/[^\p{L}\p{N}@._-]+/gu, "_");

  function serialize(svg) {
    const copy = svg.cloneNode(true), paper = document.createElementNS(svg.namespaceURI, "rect");
    for (const part of [copy, ...copy.querySelectorAll("*")]) {
      part.removeAttribute("class");  // an arm that is highlighted on the page
      for (const { name, value } of [...part.attributes]) {
        if (/^(aria|data)-/.test(name)) continue;
        part.setAttribute(name, value.replaceAll("currentColor", "var(--ink)").replace(/var\((--[\w-]+)\)/g, (_, variable) => light(variable)));
      }
    }
    copy.setAttribute("font-family", getComputedStyle(svg).fontFamily);
    for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", light("--paper")]]) paper.setAttribute(name, value);
    copy.prepend(paper);
    return new XMLSerializer().serializeToString(copy);
  }

  function createCanvas(width, height, scale = 1) {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    Object.assign(canvas, { width: scale * width, height: scale * height });
    context.scale(scale, scale);
    return { canvas, context };
  }

  async function rasterize(svg) {
    const { width, height } = svg.viewBox.baseVal, { canvas, context } = createCanvas(width, height, 2), image = new Image();
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(serialize(svg));
    await image.decode();
    context.drawImage(image, 0, 0, width, height);
    return canvas;
  }

  // The canvases of the attention explorer as they are drawn, side by side.
  function combine(figure) {
    const parts = [...figure.querySelectorAll(".panels canvas")].filter((part) => part.offsetParent);
    const { canvas, context } = createCanvas(parts.reduce((sum, part) => sum + part.width, 0), Math.max(...parts.map((part) => part.height)));
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    parts.reduce((x, part) => { context.drawImage(part, x, 0); return x + part.width; }, 0);
    return canvas;
  }

  function download(blob, name) {
    const link = document.createElement("a");
    Object.assign(link, { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
  const writers = {
    SVG: (svg) => new Blob([serialize(svg)], { type: "image/svg+xml" }),
    PNG: async (source) => {
      const canvas = source instanceof SVGElement ? await rasterize(source) : combine(source);
      return new Promise((done) => canvas.toBlob(done, "image/png"));
    },
  };
  function addControl(figure, source, name, formats) {
    const control = document.createElement("p");
    control.className = "save";
    control.append("Save ", ...formats.map((format) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = format;
      button.setAttribute("aria-label", `Save ${name} as ${format}`);
      button.addEventListener("click", async () => download(await writers[format](source), `${name}.${format.toLowerCase()}`));
      return button;
    }));
    figure.querySelector("figcaption") ? figure.querySelector("figcaption").before(control) : figure.append(control);
  }

  const charts = [...document.querySelectorAll("figure")].map((figure) => [figure, figure.querySelector("svg[data-figure]")]).filter(([, svg]) => svg);
  const split = (svg) => svg.dataset.figure.match(/^(.*?)(\d*)$/).slice(1);
  for (const [figure, svg] of charts) {
    const [kind, index] = split(svg), single = charts.filter(([, other]) => split(other)[0] === kind).length < 2;
    addControl(figure, svg, clean(`${document.body.dataset.name}-${kind}${single ? "" : `-${+index + 1}`}`), ["SVG", "PNG"]);
  }
  const view = document.getElementById("head-view");
  if (view) addControl(view, view, clean(`${document.body.dataset.name}-attention`), ["PNG"]);
})();
