"use strict";
/* Draws the figures, and lets them be chosen from. What is chosen stands in the address: #MODEL/VIEW/TAP/TOKEN. */
(() => {
  const LOW = 0.01, HIGH = 100;  // of the colour scale: the bound is in its middle
  const models = JSON.parse(document.getElementById("pictures").textContent).models;
  const sections = [...document.querySelectorAll("section.model")];
  const chosen = { model: 0, view: "", tap: "", token: null };
  const inside = (section, name) => section.querySelector(`[data-figure="${name}"]`);
  const clamped = ratio => Math.min(Math.max(ratio, LOW), HIGH);
  const said = ratio => !Number.isFinite(ratio) ? "∞" : ratio < 100 ? String(+ratio.toPrecision(2))
    : ratio < 1e6 ? ratio.toFixed(0) : ratio.toExponential(0);

  /* The errors of a tap, unpacked when it is looked at: a byte a row, the log of error ÷ bound in tenths of a decade. */
  const RATIOS = Array.from({ length: 256 }, (_, n) => n === 0 ? 0 : n === 255 ? Infinity : 10 ** ((n - 128) / 10));
  async function rows(errors) {
    if (!errors.rows) {
      const bytes = Uint8Array.from(atob(errors.tenths), c => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      errors.rows = new Uint8Array(await new Response(stream).arrayBuffer());
    }
    return errors.rows;
  }
  const worst = errors => errors.worst === null ? Infinity : errors.worst;
  const shown = errors => errors.shape.length > 0 || worst(errors) > 0;
  const taps = () => models[chosen.model].views[chosen.view] ?? [];
  const tap = () => taps().find(each => each.where === chosen.tap);

  function look() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(`--${name}`).trim();
    const text = { labelColor: colour("soft"), titleColor: colour("soft"), labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal" };
    return {
      ink: colour("ink"), paper: colour("paper"), soft: colour("soft"), chosen: colour("chosen"), fail: colour("fail"), link: colour("link"),
      config: {
        background: "transparent", font: "system-ui, 'DejaVu Sans', sans-serif", view: { stroke: null }, padding: 2,
        axis: { ...text, domainColor: colour("rule"), tickColor: colour("rule"), gridColor: colour("rule"), gridOpacity: 0.7, labelFont: "ui-monospace, 'DejaVu Sans Mono', monospace" },
        legend: { ...text, gradientThickness: 9, gradientStrokeColor: "transparent" },
      },
    };
  }
  const draw = (element, spec, renderer = "svg") => vegaEmbed(element.firstElementChild, { $schema: "https://vega.github.io/schema/vega-lite/v6.json", ...spec },
    { actions: false, defaultStyle: false, ast: true, renderer, config: look().config, tooltip: { disableDefaultStyle: true } });

  const SCALE = { type: "log", domain: [LOW, HIGH], clamp: true, scheme: "cividis" };
  const EXTENT = { minExtent: 34, maxExtent: 34 };  // so that figures below each other stand in line
  const RATIO_AXIS = { values: [0.01, 0.1, 1, 10, 100, 1000, 1e4, 1e5, 1e6], titleAnchor: "end", titleAngle: 0, titleAlign: "left", titleX: 2, titleY: -8, ...EXTENT,
    labelExpr: "format(datum.value, datum.value < 1000 ? '~g' : '~s')" };
  const unique = values => [...new Set(values)];

  /* Layers by taps, of the chosen view. */
  async function drawMap(section) {
    const colours = look(), cells = taps().map(each => ({
      where: each.where, block: each.block, tap: each.tap, ratio: clamped(worst(each)), said: shown(each) ? said(worst(each)) : "missing",
      beyond: worst(each) > 1, gone: each.missing > 0 && !shown(each), missing: each.missing,
      label: `${each.where}: ${shown(each) ? `${said(worst(each))} × its bound` : "missing"}`,
    }));
    const blocks = unique(["in", ...cells.map(each => each.block).filter(each => each !== "in" && each !== "out"), "out"]);
    const step = Math.max(13, Math.min(46, Math.floor((Math.min(innerWidth - 40, 640) - 110) / blocks.length)));
    const { view } = await draw(inside(section, "map"), {
      data: { values: cells }, width: { step }, height: { step: 15 },
      params: [{ name: "where", value: chosen.tap }],
      encoding: {
        x: { field: "block", type: "ordinal", sort: blocks, axis: { orient: "top", title: "layer", labelAngle: 0, labelOverlap: true, ticks: false, domain: false, labelPadding: 3 }, scale: { paddingInner: 0.06 } },
        y: { field: "tap", type: "ordinal", sort: null, axis: { title: null, ticks: false, domain: false, labelLimit: 130 }, scale: { paddingInner: 0.06 } },
        description: { field: "label" },
        tooltip: [{ field: "where", title: "tap" }, { field: "said", title: "error ÷ bound" }, { field: "missing", title: "paths missing" }],
      },
      layer: [
        { transform: [{ filter: "!datum.gone" }], mark: { type: "rect" }, encoding: { color: { field: "ratio", type: "quantitative", scale: SCALE,
          legend: { title: "error ÷ bound", orient: "bottom", direction: "horizontal", gradientLength: Math.max(160, Math.min(300, step * blocks.length)), values: [0.01, 0.1, 1, 10, 100], format: "~g", titleAnchor: "start" } } } },
        { transform: [{ filter: "datum.missing > 0" }], mark: { type: "rect", fill: "url(#hatch)" } },
        { transform: [{ filter: "datum.beyond" }], mark: { type: "text", text: "×", fontSize: 13, fontWeight: "bold", baseline: "middle" },
          encoding: { color: { condition: { test: "datum.ratio > 30", value: "#1c2226" }, value: "#ffffff" } } },
        { transform: [{ filter: "datum.where == where" }], mark: { type: "rect", filled: false, fillOpacity: 0, stroke: colours.chosen, strokeWidth: 2.5 } },
      ],
    });
    view.addEventListener("click", (_, item) => item?.datum?.where && choose({ tap: item.datum.where, token: null }));
    section.mapView = view;
  }

  /* Tokens by heads of the chosen tap, and the worst of its heads along the tokens. */
  async function drawTap(section) {
    const errors = tap(), name = section.querySelector("[data-name]"), status = section.querySelector("[data-status]");
    name.textContent = errors ? errors.where : "";
    for (const figure of ["tokens", "along"]) inside(section, figure).hidden = !errors?.shape.length;
    if (!errors) return;
    if (!errors.shape.length) {
      status.textContent = shown(errors) ? "it has no shape that could be compared" : `missing: not given on ${errors.missing} paths`;
      return;
    }
    const codes = await rows(errors), [length, heads = 1] = errors.shape, cells = [], along = [];
    for (let token = 0; token < length; token++) {
      let most = 0;
      for (let head = 0; head < heads; head++) {
        const ratio = Math.min(RATIOS[codes[token * heads + head]], worst(errors));
        most = Math.max(most, ratio);
        cells.push({ token, end: token + 1, head, ratio: clamped(ratio), said: said(ratio) });
      }
      along.push({ token: token + 0.5, at: token, ratio: Math.min(Math.max(most, LOW), 1e6), said: said(most), beyond: most > 1 });
    }
    const beyond = along.filter(each => each.beyond).length, first = along.findIndex(each => each.beyond);
    if (chosen.token === null || chosen.token >= length) chosen.token = first >= 0 ? first : along.reduce((best, each, i) => each.ratio > along[best].ratio ? i : best, 0);
    status.textContent = `${chosen.view}: at the most ${said(worst(errors))} × its bound, ` +
      (beyond ? `beyond it at ${beyond} of ${length} tokens, first at ${first}` : `within it at all ${length} tokens`) +
      `; token ${chosen.token}: ${along[chosen.token].said}` + (errors.missing ? `; missing on ${errors.missing} paths` : "");
    const colours = look(), width = inside(section, "tokens").clientWidth - 60;
    const x = { field: "token", type: "quantitative", scale: { domain: [0, length], nice: false }, axis: { title: null, grid: false, tickMinStep: 1, labels: false, ticks: false, domain: false } };
    const params = [{ name: "at", value: chosen.token }];
    const tokens = await draw(inside(section, "tokens"), {
      data: { values: cells }, width, height: Math.max(14, Math.min(260, heads * Math.max(3, 42 / Math.max(3, heads)))), params,
      encoding: { x, x2: { field: "end" }, y: { field: "head", type: "ordinal", axis: { title: heads > 1 ? "head" : null, labelOpacity: heads > 1 ? 1 : 0, labelOverlap: true, ticks: false, domain: false, titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: 2, titleY: -4, ...EXTENT } } },
      layer: [
        { mark: { type: "rect" }, encoding: { color: { field: "ratio", type: "quantitative", scale: SCALE, legend: null },
          tooltip: [{ field: "token" }, { field: "head" }, { field: "said", title: "error ÷ bound" }] } },
        { transform: [{ filter: "datum.token == at" }], mark: { type: "rect", filled: false, fillOpacity: 0, stroke: colours.chosen, strokeWidth: 1.5 } },
      ],
    }, cells.length > 4000 ? "canvas" : "svg");
    const line = await draw(inside(section, "along"), {
      data: { values: along }, width, height: 120, params,
      encoding: { x: { ...x, axis: { title: "token", grid: false, tickMinStep: 1, titleAnchor: "end" } } },
      layer: [
        { mark: { type: "line", color: colours.link, strokeWidth: 1.3, interpolate: "step" }, encoding: { y: { field: "ratio", type: "quantitative", scale: { type: "log", domain: [LOW, Math.max(10, ...along.map(each => each.ratio))] }, axis: { ...RATIO_AXIS, title: "error ÷ bound, along the tokens" } } } },
        { mark: { type: "rule", strokeDash: [5, 3], color: colours.fail }, data: { values: [{}] }, encoding: { x: null, y: { datum: 1 } } },
        { transform: [{ filter: "datum.at == at" }], mark: { type: "point", shape: "circle", filled: true, size: 45, color: colours.chosen }, encoding: { y: { field: "ratio", type: "quantitative" } } },
        { mark: { type: "rule", opacity: 0, strokeWidth: Math.max(3, width / length) }, encoding: { tooltip: [{ field: "at", title: "token" }, { field: "said", title: "error ÷ bound" }] } },
      ],
    });
    for (const { view } of [tokens, line]) view.addEventListener("click", (_, item) => {
      const token = item?.datum?.at ?? item?.datum?.token;
      if (token !== undefined) choose({ token });
    });
  }

  /* The residual stream, in both views. */
  async function drawStream(section) {
    const colours = look(), { views } = models[chosen.model], stages = [];
    for (const [view, all] of Object.entries(views)) for (const each of all) if (each.residual && shown(each))
      stages.push({ view, where: each.where, stage: each.where.replace("blocks.", "").replace("moba.", "m"), ratio: Math.min(Math.max(worst(each), LOW), 1e6), said: said(worst(each)) });
    const legend = { title: null, orient: "top-right", symbolType: "stroke", offset: -14, direction: "horizontal" };
    const width = inside(section, "stream").clientWidth - 60;
    const { view } = await draw(inside(section, "stream"), {
      data: { values: stages }, width, height: 130,
      layer: [
        { mark: { type: "line", strokeWidth: 1.3, point: { size: 30 } }, encoding: {
          x: { field: "stage", type: "ordinal", sort: null, axis: { title: null, labelOverlap: true, grid: false } },
          y: { field: "ratio", type: "quantitative", scale: { type: "log", domain: [LOW, Math.max(10, ...stages.map(each => each.ratio))] }, axis: { ...RATIO_AXIS, title: "error ÷ bound" } },
          color: { field: "view", type: "nominal", scale: { domain: ["isolated", "cumulative"], range: [colours.link, colours.ink] }, legend },
          strokeDash: { field: "view", type: "nominal", scale: { domain: ["isolated", "cumulative"], range: [[1, 0], [5, 3]] }, legend },
          tooltip: [{ field: "where", title: "tap" }, { field: "view" }, { field: "said", title: "error ÷ bound" }] } },
        { mark: { type: "rule", strokeDash: [5, 3], color: colours.fail }, data: { values: [{}] }, encoding: { y: { datum: 1 } } },
      ],
    });
    view.addEventListener("click", (_, item) => item?.datum?.where && choose({ tap: item.datum.where, token: null }));
  }

  /* One drawing at a time; what was asked for meanwhile is drawn after it. */
  let drawing = Promise.resolve();
  function redraw(...figures) {
    const section = sections[chosen.model];
    if (!chosen.view) return;
    drawing = drawing.then(async () => { for (const figure of figures) await figure(section); document.body.dataset.drawn = location.hash; });
  }

  function choose(next, { push = true } = {}) {
    const before = { ...chosen };
    Object.assign(chosen, next);
    const { views } = models[chosen.model];
    if (!views[chosen.view]) chosen.view = Object.keys(views)[0] ?? "";
    if (!tap()) {
      chosen.tap = (taps().find(each => worst(each) > 1) ?? taps().find(each => each.missing) ?? taps().reduce((a, b) => worst(a) >= worst(b) ? a : b, taps()[0]))?.where ?? "";
      chosen.token = null;
    }
    const other = chosen.model !== before.model || chosen.view !== before.view || !sections[chosen.model].mapView;
    sections.forEach((section, i) => { section.hidden = i !== chosen.model; });
    document.querySelectorAll("[role=tab]").forEach((tab, i) => { tab.ariaSelected = String(i === chosen.model); tab.tabIndex = i === chosen.model ? 0 : -1; });
    const section = sections[chosen.model];
    section.querySelectorAll(".switch input").forEach(input => { input.checked = input.value === chosen.view; });
    section.querySelectorAll("[data-note]").forEach(note => { note.hidden = note.dataset.note !== chosen.view; });
    if (other) redraw(drawMap, drawTap, drawStream);
    else redraw(async () => section.mapView.signal("where", chosen.tap).runAsync(), drawTap);
    drawing = drawing.then(() => {
      const address = "#" + [models[chosen.model].model, chosen.view, chosen.tap, chosen.token ?? ""].map(encodeURIComponent).join("/");
      if (push && location.hash !== address) history.replaceState(null, "", address);
      document.body.dataset.drawn = location.hash;
    });
  }

  function follow() {
    const [model, view, where, token] = location.hash.slice(1).split("/").map(decodeURIComponent);
    const at = models.findIndex(each => each.model === model);
    choose(at < 0 ? {} : { model: at, view: view ?? "", tap: where ?? "", token: token ? Number(token) : null });
  }

  for (const [i, section] of sections.entries()) {
    section.querySelectorAll(".switch input").forEach(input => input.addEventListener("change", () => choose({ view: input.value, token: null })));
    inside(section, "map")?.addEventListener("keydown", event => {
      const at = tap(), move = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
      if (!at || !move) return;
      event.preventDefault();
      const line = move[0] ? taps().filter(each => each.tap === at.tap) : taps().filter(each => each.block === at.block);
      const next = line[line.indexOf(at) + move[0] + move[1]] ?? taps()[taps().indexOf(at) + move[0] + move[1]];
      if (next) choose({ tap: next.where, token: null });
    });
    inside(section, "tokens")?.addEventListener("keydown", event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], length = tap()?.shape[0];
      if (!move || !length) return;
      event.preventDefault();
      choose({ token: Math.min(Math.max(chosen.token + move, 0), length - 1) });
    });
    const words = section.querySelector("[data-filter]"), unpassed = section.querySelector("[data-unpassed]"), count = section.querySelector("[data-count]");
    const checks = [...section.querySelectorAll(".checks tbody tr")];
    const filter = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of checks) row.hidden = (unpassed.checked && row.dataset.verdict === "PASS") || !wanted.every(word => row.textContent.toLowerCase().includes(word));
      count.textContent = `${checks.filter(row => !row.hidden).length} of ${checks.length} checks`;
    };
    words.addEventListener("input", filter);
    unpassed.addEventListener("change", filter);
    filter();
  }
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose({ model: i, tap: "", token: null }));
    tab.addEventListener("keydown", event => {
      const next = tabs[i + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? NaN)];
      if (next) { next.click(); next.focus(); }
    });
  });
  document.addEventListener("click", async event => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; }
    catch { getSelection().selectAllChildren(button.previousElementSibling); button.textContent = "selected"; }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  addEventListener("hashchange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(drawMap, drawTap, drawStream));
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => redraw(drawMap, drawTap, drawStream), 150); });
  follow();
})();
