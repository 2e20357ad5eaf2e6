"use strict";
(() => {
  const live = LIVE;
  let study = JSON.parse(document.getElementById("study").textContent);
  const hidden = new Set();
  let shownEnv = null;

  // --- small helpers -----------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function element(tag, attributes, ...children) {
    const node = document.createElement(tag);
    return fill(node, attributes, children);
  }
  function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }
  function fill(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }
  function short(x) {
    if (x === null || x === undefined || Number.isNaN(x)) return "–";
    const size = Math.abs(x);
    if (size >= 1e6) return (x / 1e6).toFixed(size >= 1e7 ? 0 : 1).replace(/\.0$/, "") + "M";
    if (size >= 1e4) return (x / 1e3).toFixed(0) + "k";
    if (size >= 100) return x.toFixed(0);
    if (size >= 10) return x.toFixed(1);
    return x.toFixed(2).replace("-0.00", "0.00");
  }
  function axis(x) {
    const size = Math.abs(x);
    if (size >= 1e6) return +(x / 1e6).toFixed(2) + "M";
    if (size >= 1e3) return +(x / 1e3).toFixed(1) + "k";
    return String(+x.toPrecision(3));
  }
  function plain(value) {
    if (value === null) return "none";
    if (Array.isArray(value)) return value.map(plain).join(", ");
    return String(value);
  }
  function ticks(low, high, wanted) {
    const raw = (high - low) / Math.max(1, wanted);
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
    return found;
  }
  // As wide as the card it goes into, so that its letters keep their size.
  const chartWidth = () => Math.max(280, Math.min(1000, window.innerWidth - (window.innerWidth < 672 ? 58 : 102)));
  const label = (name) => name.replace(/_/g, " ");
  const colour = (index) => `var(--c${index % 7})`;
  const dash = (index) => ["", "6 4", "2 4"][Math.floor(index / 7) % 3];
  const indexOf = (name) => study.rows.findIndex((row) => row.name === name);
  const visible = (row) => !hidden.has(row.name);
  // A single run has no interval.
  const hasInterval = (e) => e.low !== null;
  const ends = (e) => (hasInterval(e) ? [e.low, e.high] : [e.value, e.value]);

  // --- the page ----------------------------------------------------------------------------
  function render() {
    document.getElementById("crumbs").textContent =
      [study.suite, study.scale && `${study.scale} scale`, study.figure].filter(Boolean).join(" · ");
    const page = document.getElementById("page");
    const parts = [overview(), claims(), curves(), sweep(), scores(), games(), media(), settings(), reproduce()];
    page.replaceChildren(...parts.flat().filter(Boolean));
  }
  function section(title, ...content) {
    return [element("h2", {}, title), ...content];
  }

  function overview() {
    const done = study.runs_finished, wanted = study.runs_wanted;
    const facts = [
      ["Runs finished", `${done} of ${wanted}`],
      ["Environments", study.envs.length === 1 ? study.envs[0].name : String(study.envs.length)],
      ["Rows", String(study.rows.length)],
      ["Device", [...new Set(study.machines.flatMap((m) => m.devices))].join(", ") || "–"],
    ];
    return [
      element("h1", {}, study.title),
      element("p", { class: "lead", id: "verdict" }, ...verdict()),
      element("dl", { class: "facts" }, facts.map(([key, value]) =>
        element("div", {}, element("dt", {}, key), element("dd", {}, value)))),
      done < wanted
        ? element("div", { class: "progress", role: "progressbar", "aria-valuenow": Math.round(100 * study.progress) },
            element("i", { style: `width:${(100 * study.progress).toFixed(1)}%` }))
        : null,
      study.missing.length
        ? element("div", { class: "missing note" }, study.missing.map((line) => element("div", {}, `Not here: ${line}`)))
        : null,
    ];
  }
  function verdict() {
    const count = (name) => study.claims.filter((claim) => claim.verdict === name).length;
    const seen = count("holds"), alike = count("no difference seen"), against = count("reversed") + count("differs");
    const rest = study.claims.length - seen - alike - against;
    const best = study.rows.filter((row) => row.aggregates.iqm)
      .sort((a, b) => b.aggregates.iqm.value - a.aggregates.iqm.value)[0];
    const lead = best && study.rows.length > 1
      ? [" Highest interquartile mean: ", element("strong", {}, label(best.name)), "."] : [];
    if (!study.claims.length) return [study.remark || "No claim of the paper is checked here.", ...lead];
    const parts = [];
    parts.push("Of what the paper says here, ", element("strong", {}, `${seen} of ${study.claims.length}`),
      seen === 1 ? " statements agrees with these runs" : " statements agree with these runs");
    if (against) parts.push(", ", element("strong", {}, String(against)), against === 1 ? " disagrees" : " disagree");
    if (rest) parts.push(", ", element("strong", {}, String(rest)), rest === 1 ? " stays open" : " stay open");
    if (alike) parts.push("; for ", element("strong", {}, String(alike)), " no difference was seen, which contradicts nothing and proves nothing");
    parts.push(".", ...lead);
    return parts;
  }

  function claims() {
    if (!study.claims.length) return [];
    const gaps = study.claims.filter((c) => c.gap);
    const reach = Math.max(0.01, ...gaps.flatMap((c) => ends(c.gap).map(Math.abs)));
    return section("What the paper says, and what we see",
      element("ul", { class: "claims" }, study.claims.map((claim) =>
        element("li", {},
          element("span", { class: `badge ${claim.verdict.split(" ")[0]}` }, claim.verdict),
          element("span", {}, claim.text, claim.improvement
            ? element("small", {}, `a run of ${label(claim.first)} beats one of ${label(claim.second)} in ${Math.round(100 * claim.improvement.value)}% of pairs${hasInterval(claim.improvement) ? ` (${ends(claim.improvement).map((v) => Math.round(100 * v)).join("–")})` : ""}`) : null),
          claim.gap ? whisker(claim.gap, -reach, reach, "var(--ink)", true) : element("span"))
      )),
      element("p", { class: "caption" }, "Bars: difference of mean scores, normalised, with 95% stratified bootstrap intervals; the line is no difference. That rows are alike can be contradicted by few runs, never proved. ", study.remark));
  }
  function whisker(e, low, high, stroke, zero) {
    const width = 260, height = 26, pad = 6;
    const x = (v) => pad + (width - 2 * pad) * (Math.min(high, Math.max(low, v)) - low) / (high - low || 1);
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: "width:260px;max-width:100%;height:26px", "aria-label": [short(e.value), ...(hasInterval(e) ? [ends(e).map(short).join(" to ")] : [])].join(", ") },
      zero ? svg("line", { x1: x(0), x2: x(0), y1: 2, y2: height - 2, class: "axis", style: "stroke:var(--faint)" }) : null,
      hasInterval(e) ? svg("line", { x1: x(e.low), x2: x(e.high), y1: height / 2, y2: height / 2, stroke, "stroke-width": 6, "stroke-linecap": "round", opacity: .28 }) : null,
      svg("ellipse", { cx: x(e.value), cy: height / 2, rx: 4.5, ry: 4.5, fill: stroke }));
  }

  // --- curves ------------------------------------------------------------------------------
  function curves() {
    const envs = study.envs.map((env) => env.name).filter((name) => study.rows.some((row) => row.curves[name]));
    if (!envs.length) return [];
    if (!envs.includes(shownEnv)) shownEnv = envs[0];
    const card = element("div", { class: "card" });
    function draw() {
      const tabs = envs.length > 1
        ? element("div", { class: "row", role: "group", "aria-label": "Environment" }, envs.map((name) =>
            element("button", { class: "tab", type: "button", "aria-pressed": String(name === shownEnv),
              onclick: () => { shownEnv = name; draw(); } }, name.replace(/^(minatar_|atari:|gym:)/, ""))))
        : null;
      const keys = element("div", { class: "row", role: "group", "aria-label": "Rows" }, study.rows.map((row, index) =>
        row.curves[shownEnv]
          ? element("button", { class: "key", type: "button", "aria-pressed": String(visible(row)), "data-row": row.name,
              onclick: () => { if (!hidden.delete(row.name)) hidden.add(row.name); draw(); } },
              svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: colour(index), "stroke-width": 3, "stroke-dasharray": dash(index) })),
              label(row.name))
          : null));
      card.replaceChildren(...[tabs, keys, chart(shownEnv)].filter(Boolean));
    }
    draw();
    return section("Learning curves", card,
      element("p", { class: "caption" }, "Mean return of the newest 100 training episodes (where agents play themselves: of evaluations against a random player), averaged over seeds; bands are 95% bootstrap intervals. Dotted: a random player and the reference."));
  }
  function chart(env) {
    const box = element("div", { class: "chart" });
    const [width, height] = [chartWidth(), window.innerWidth < 672 ? 270 : 400];
    const margin = { left: 42, right: 10, top: 12, bottom: 44 };
    const rows = study.rows.filter((row) => visible(row) && row.curves[env]);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Learning curves on ${env}`, class: rows.length > 7 ? "curves crowded" : "curves" });
    box.append(picture);
    if (!rows.length) {
      picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Every row is switched off."));
      return box;
    }
    const all = rows.flatMap((row) => ends(row.curves[env])).flat();
    const facts = study.envs.find((e) => e.name === env);
    let low = Math.min(...all), high = Math.max(...all);
    const span = high - low || 1;
    const lines = [];
    if (facts.random !== null) {
      for (const [value, name] of [[facts.random, "random"], [facts.reference, facts.who]]) {
        // A far-away reference would flatten the curves.
        if (value > low - 0.35 * span && value < high + 0.35 * span) lines.push([value, name]);
      }
    }
    for (const [value] of lines) { low = Math.min(low, value); high = Math.max(high, value); }
    const room = 0.04 * (high - low || 1); low -= room; high += room;
    const last = Math.max(...rows.map((row) => row.curves[env].steps.at(-1)));
    const x = (v) => margin.left + (width - margin.left - margin.right) * v / last;
    const y = (v) => height - margin.bottom - (height - margin.top - margin.bottom) * (v - low) / (high - low);
    for (const t of ticks(low, high, 5)) picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(t), y2: y(t), class: "gridline" }),
      svg("text", { x: margin.left - 8, y: y(t) + 4, "text-anchor": "end" }, axis(t)));
    for (const t of ticks(0, last, width < 600 ? 4 : 8)) picture.append(
      svg("text", { x: x(t), y: height - margin.bottom + 20, "text-anchor": "middle" }, axis(t)));
    picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom, class: "axis" }),
      svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, "environment steps"));
    for (const [value, name] of lines) picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value), class: "reference" }),
      name === "random"  // at the end away from the curves
        ? svg("text", { x: width - margin.right, y: y(value) - 5, "text-anchor": "end", class: "aside" }, name)
        : svg("text", { x: margin.left + 4, y: y(value) - 5, class: "aside" }, name));
    for (const row of rows) {
      const c = row.curves[env], index = indexOf(row.name);
      if (!hasInterval(c)) continue;
      const point = (v, k) => `${x(c.steps[k]).toFixed(1)},${y(v).toFixed(1)}`;
      picture.append(svg("polygon", { class: "band", fill: colour(index),
        points: [...c.high.map(point), ...c.low.map(point).reverse()].join(" ") }));
    }
    for (const row of rows) {
      const c = row.curves[env], index = indexOf(row.name);
      picture.append(svg("polyline", { class: "curve", stroke: colour(index), "stroke-dasharray": dash(index), "data-row": row.name,
        points: c.value.map((v, k) => `${x(c.steps[k]).toFixed(1)},${y(v).toFixed(1)}`).join(" ") }));
      // A line through a single point cannot be seen.
      if (c.steps.length === 1) picture.append(svg("circle", { cx: x(c.steps[0]), cy: y(c.value[0]), r: 4, fill: colour(index) }));
    }
    hover(box, picture, rows, env, { x, last, width, height, margin });
    return box;
  }
  function hover(box, picture, rows, env, frame) {
    const { x, last, width, height, margin } = frame;
    const cross = svg("line", { class: "cross", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" });
    const tip = element("div", { class: "tip", hidden: "" });
    picture.append(cross);
    box.append(tip);
    function move(event) {
      const bounds = picture.getBoundingClientRect();
      const scale = width / bounds.width;
      const steps = last * ((event.clientX - bounds.left) * scale - margin.left) / (width - margin.left - margin.right);
      if (steps < 0 || steps > last) { leave(); return; }
      const near = rows.map((row) => {
        const c = row.curves[env];
        let best = 0;
        c.steps.forEach((s, k) => { if (Math.abs(s - steps) < Math.abs(c.steps[best] - steps)) best = k; });
        return { row, at: c.steps[best], value: c.value[best] };
      }).sort((a, b) => b.value - a.value);
      const at = near[0].at;
      cross.setAttribute("x1", x(at)); cross.setAttribute("x2", x(at)); cross.setAttribute("visibility", "visible");
      tip.replaceChildren(element("b", {}, `${Math.round(at).toLocaleString("en")} steps`), ...near.map((n) =>
        element("div", {}, element("i", { style: `background:${colour(indexOf(n.row.name))}` }), element("span", {}, label(n.row.name)), element("span", {}, short(n.value)))));
      tip.hidden = false;
      const left = (x(at) / scale) + 14;
      const flip = left + tip.offsetWidth > bounds.width;
      tip.style.left = `${flip ? Math.max(0, left - tip.offsetWidth - 28) : left}px`;
    }
    function leave() { cross.setAttribute("visibility", "hidden"); tip.hidden = true; }
    // Where it stood no longer means anything, and it may stand beyond a narrower page.
    window.addEventListener("resize", leave);
    picture.addEventListener("pointermove", move);
    picture.addEventListener("pointerdown", move);
    picture.addEventListener("pointerleave", leave);
  }

  // --- a number swept over ------------------------------------------------------------------
  function sweep() {
    const found = study.rows.map((row) => [row, row.name.match(/^(.*)_([0-9.e+-]+)$/)]);
    if (found.length < 4 || found.some(([, match]) => !match || !(+match[2] > 0))) return [];
    const series = {};
    for (const [row, match] of found) if (row.aggregates.iqm) (series[match[1]] ||= []).push({ at: +match[2], ...row.aggregates.iqm });
    const names = Object.keys(series);
    if (!names.length) return [];
    for (const name of names) series[name].sort((a, b) => a.at - b.at);
    const [width, height] = [chartWidth(), window.innerWidth < 672 ? 250 : 340];
    const margin = { left: 42, right: 10, top: 12, bottom: 34 };
    const points = Object.values(series).flat();
    const from = Math.log10(Math.min(...points.map((p) => p.at))), to = Math.log10(Math.max(...points.map((p) => p.at)));
    let low = Math.min(...points.flatMap(ends)), high = Math.max(...points.flatMap(ends));
    const room = 0.08 * (high - low || 1); low -= room; high += room;
    const x = (v) => margin.left + 18 + (width - margin.left - margin.right - 36) * (Math.log10(v) - from) / (to - from || 1);
    const y = (v) => height - margin.bottom - (height - margin.top - margin.bottom) * (v - low) / (high - low);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Score over the swept number", class: "sweep" });
    for (const t of ticks(low, high, 5)) picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(t), y2: y(t), class: "gridline" }),
      svg("text", { x: margin.left - 8, y: y(t) + 4, "text-anchor": "end" }, axis(t)));
    for (const at of [...new Set(points.map((p) => p.at))]) picture.append(
      svg("text", { x: x(at), y: height - 10, "text-anchor": "middle" }, axis(at)));
    names.forEach((name, index) => {
      const nudge = (index - (names.length - 1) / 2) * 5;
      picture.append(svg("polyline", { class: "curve", stroke: colour(index), points: series[name].map((p) => `${x(p.at) + nudge},${y(p.value)}`).join(" ") }));
      for (const p of series[name]) picture.append(
        svg("line", { x1: x(p.at) + nudge, x2: x(p.at) + nudge, y1: y(ends(p)[0]), y2: y(ends(p)[1]), stroke: colour(index), "stroke-width": 5, "stroke-linecap": "round", opacity: .25 }),
        svg("circle", { cx: x(p.at) + nudge, cy: y(p.value), r: 4, fill: colour(index) }));
    });
    const keys = element("div", { class: "row" }, names.map((name, index) =>
      element("span", { class: "key note" }, svg("svg", { viewBox: "0 0 22 8" }, svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: colour(index), "stroke-width": 3 })), label(name))));
    return section("Score over the swept number", element("div", { class: "card" }, keys, element("div", { class: "chart" }, picture)),
      element("p", { class: "caption" }, "Interquartile mean of normalised scores with 95% intervals; the horizontal axis is logarithmic."));
  }

  // --- tables ------------------------------------------------------------------------------
  function number(e) {
    if (!e) return ["–"];
    return [short(e.value), hasInterval(e) ? element("small", {}, ` ${ends(e).map(short).join(" – ")}`) : null];
  }
  function scores() {
    const rows = study.rows.filter((row) => row.aggregates.iqm);
    if (!rows.length) {
      const why = study.comparable ? "No row is finished in every environment yet." : "These environments share no measure, so their scores are not averaged.";
      return section("Scores", element("p", { class: "note" }, why));
    }
    const reach = rows.flatMap((row) => ends(row.aggregates.iqm));
    const low = Math.min(0, ...reach), high = Math.max(...reach);
    const published = study.rows.some((row) => row.published);
    const who = [...new Set(study.envs.map((env) => env.who).filter(Boolean))].join("; ");
    const [episodes, evaluation] = ["the mean of its last 200 training episodes", "its last evaluation, against a random player"];
    const measure = study.envs.every((env) => env.self_play) ? evaluation
      : study.envs.some((env) => env.self_play) ? `${episodes} (for self-play: ${evaluation})` : episodes;
    return section("Scores",
      element("div", { class: "scroll" }, element("table", { id: "scores" },
        element("thead", {}, element("tr", {}, ["Row", "Runs", "Interquartile mean", "", "Median", "Mean", "Optimality gap"].map((h, k) => element("th", { class: k === 0 || k === 2 ? "text" : null, scope: "col" }, h)), published ? element("th", { class: "text", scope: "col" }, "In the paper, on Atari") : null)),
        element("tbody", {}, study.rows.map((row) => {
          const a = row.aggregates, tint = colour(indexOf(row.name));
          return element("tr", {},
            element("th", { scope: "row" }, element("span", { class: "swatch", style: `background:${tint}` }), label(row.name)),
            element("td", {}, String(row.finished)),
            element("td", { class: "bar" }, a.iqm ? whisker(a.iqm, low, high, tint, low < 0) : ""),
            element("td", {}, ...number(a.iqm)), element("td", {}, ...number(a.median)),
            element("td", {}, ...number(a.mean)), element("td", {}, ...number(a.optimality_gap)),
            published ? element("td", { class: "text" }, row.published || "–") : null);
        })))),
      element("p", { class: "caption" }, `A run’s score is ${measure}, normalised so that a random player has 0 and the reference 1`,
        who ? ` (${who})` : "", ". Median: over environments, of the mean over seeds, as in the paper. Small figures are 95% stratified bootstrap intervals."));
  }
  function games() {
    const finished = study.rows.filter((row) => Object.keys(row.envs).length);
    if (!finished.length) return [];
    const printed = Object.keys(study.published).length > 0;
    return [element("h3", {}, "In each environment’s own units"),
      element("div", { class: "scroll" }, element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Environment"), finished.map((row) => element("th", { scope: "col" }, label(row.name))), printed ? element("th", { scope: "col" }, "In the paper") : null)),
        element("tbody", {}, study.envs.map((env) => element("tr", {}, element("th", { scope: "row" }, env.name),
          finished.map((row) => element("td", {}, ...number(row.envs[env.name]))),
          printed ? element("td", {}, study.published[env.name] || "–") : null)))))];
  }

  function media() {
    if (!(study.media || []).length) return [];
    return section("At play", element("div", { class: "media" }, study.media.map((item) =>
      element("figure", {}, element("video", { src: item.data, poster: item.poster, controls: "", muted: "", loop: "", playsinline: "", preload: "none" }), element("figcaption", {}, item.caption)))),
      element("p", { class: "caption" }, "The frame, the policy and the model’s action values q̂ beside it."));
  }
  function settings() {
    const rows = Object.entries(study.settings.rows), base = Object.entries(study.settings.base);
    const fields = rows.length ? Object.keys(rows[0][1]) : [];
    const parts = [];
    if (fields.length) parts.push(element("div", { class: "scroll" }, element("table", { class: "settings" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Row"), fields.map((f) => element("th", { scope: "col" }, element("code", {}, f))))),
      element("tbody", {}, rows.map(([name, values]) => element("tr", {}, element("th", { scope: "row" }, label(name)), fields.map((f) => element("td", {}, plain(values[f])))))))));
    if (base.length) parts.push(element("h3", {}, `All rows, where they differ from the preset ${study.preset}`),
      element("div", { class: "scroll" }, element("table", { class: "settings" }, element("tbody", {}, base.map(([f, v]) => element("tr", {}, element("th", { scope: "row" }, element("code", {}, f)), element("td", {}, plain(v))))))));
    return parts.length ? section("Configuration", ...parts) : [];
  }
  function reproduce() {
    const command = [...study.earlier_commands, study.command].map((words) => words.join(" ")).filter(Boolean).join("\n");
    const machine = study.machines.map((m) => element("li", {}, `${m.runs} runs: ${m.devices.join(", ")}; ${m.platform}; Python ${m.python}, jax ${m.jax}; commit ${(m.commit || "unknown").slice(0, 12)}`));
    return section("Reproduce",
      command ? element("pre", {}, element("code", {}, command)) : null,
      machine.length ? element("ul", { class: "note" }, machine) : null);
  }

  // --- colours and life --------------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  let theme = 0;
  document.getElementById("theme").addEventListener("click", (event) => {
    theme = (theme + 1) % 3;
    const name = themes[theme];
    if (theme) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
    event.target.textContent = name[0].toUpperCase() + name.slice(1);
    event.target.setAttribute("aria-label", `Colours: ${theme ? name : "as the system"}`);
  });
  let drawn = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== drawn) { drawn = window.innerWidth; render(); }
  });
  render();
  // What was drawn last, as this side would write it: Python's 1.0 is a 1 here.
  let last = JSON.stringify(study);
  if (live) setInterval(async () => {
    try {
      const answer = await fetch(`study.json${location.search}`, { cache: "no-store" });
      if (!answer.ok) return;
      const news = await answer.json(), text = JSON.stringify(news);
      if (text !== last) { study = news; last = text; render(); }
    } catch { /* the server has stopped; what is drawn stays */ }
  }, 3000);
})();
