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
  const known = (x) => typeof x === "number" && Number.isFinite(x);
  const minus = (text) => text.replace(/^-/, "−");
  // Three significant figures, four from 1,000 on; numbers side by side share their last place, and
  // those above each other go no further than a third decimal where the largest of them do without.
  const figures = (...numbers) => inFigures(numbers, 0);
  function inFigures(numbers, least) {
    const size = Math.max(least, ...numbers.filter(known).map(Math.abs));
    const place = size ? Math.floor(Math.log10(size)) - (size >= 1000 ? 3 : 2) : 0;
    const digits = Math.min(5, Math.max(0, -place)), unit = Math.pow(10, Math.max(0, place));
    const form = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return numbers.map((x) => known(x) ? minus((Math.round(x / unit * 10 ** digits) / 10 ** digits * unit + 0).toLocaleString("en", form)) : "–");
  }
  // Ticks as they are, all in one unit.
  function axis(values) {
    const size = Math.max(0, ...values.map(Math.abs));
    const [unit, suffix] = size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
    return values.map((v) => v === 0 ? "0" : minus((+(v / unit).toPrecision(9)).toLocaleString("en", { maximumFractionDigits: 12 })) + suffix);
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
  const visible = (row) => !hidden.has(row.name);
  // In the environment's own units, such as "raw return".
  const isRaw = () => study.measure ? study.measure.startsWith("raw") : study.envs.some((env) => !known(env.reference));
  // A single run has no interval, and one that diverged no number.
  const hasInterval = (e) => known(e.low) && known(e.high);
  const ends = (e) => (hasInterval(e) ? [e.low, e.high] : [e.value]).filter(known);
  const hasBand = (c) => Array.isArray(c.low);
  function span(e, least = 0) {
    const [, low, high] = inFigures([e.value, e.low, e.high], least);
    return low.startsWith("−") ? `${low} to ${high}` : `${low} – ${high}`;
  }

  // --- how a row looks, in legend, chart and table ------------------------------------------
  const look = (name) => study.looks[name];
  const hue = (index) => `var(--c${index})`;
  function colour(name) {
    const { hue: index, shade } = look(name);
    if (!shade) return hue(index);
    const [ground, share] = shade > 0 ? ["var(--ink)", 50 * shade] : ["var(--card)", -35 * shade];
    return `color-mix(in oklab, ${hue(index)}, ${ground} ${share.toFixed(0)}%)`;
  }
  const dash = (name) => ["", "6 4", "9 4 2 4"][look(name).dash];
  const PLUS = "M-.36-1H.36V-.36H1V.36H.36V1H-.36V.36H-1V-.36H-.36Z";
  const MARKS = ["M-.88-.88H.88V.88H-.88Z", "M0-1.1L1.1.9H-1.1Z", "M0-1.25L1.25 0L0 1.25L-1.25 0Z", "M0 1.1L1.1-.9H-1.1Z",
    PLUS, PLUS, "M-1,0A1,1 0 1 0 1,0A1,1 0 1 0 -1,0Z"];
  function mark(name, x, y, size) {
    const shape = look(name).marker ?? 6;
    return svg("path", { class: "mark", d: MARKS[shape], fill: colour(name),
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})${shape === 5 ? " rotate(45)" : ""}` });
  }
  const swatch = (name) => svg("svg", { class: "swatch", viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(name, 0, 0, 5));
  function sample(name) {
    return svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" },
      svg("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour(name), "stroke-width": 3, "stroke-dasharray": dash(name) }),
      look(name).marker === null ? null : mark(name, 11, 5, 4));
  }

  // --- the page ----------------------------------------------------------------------------
  function render() {
    document.getElementById("crumbs").textContent =
      [study.suite, study.scale && `${study.scale} scale`, study.figure].filter(Boolean).join(" · ");
    const page = document.getElementById("page");
    const parts = [overview(), claims(), curves(), sweep(), scores(), games(), media(), settings(), reproduce()];
    keeping(() => page.replaceChildren(...parts.flat().filter(Boolean)));
  }
  // What is drawn anew stays scrolled and in focus where it was.
  function keeping(redraw) {
    const focus = document.activeElement?.dataset?.id;
    const scrolled = [...document.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
    redraw();
    document.querySelectorAll(".scroll").forEach((node, k) => { node.scrollLeft = scrolled[k] || 0; });
    if (focus) document.querySelector(`[data-id="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
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
      troubles(),
    ];
  }
  function troubles() {
    const rows = study.rows.filter((row) => row.diverged);
    const told = [study.runs_diverged, study.diverged].map((x) => (Array.isArray(x) ? x.length : x)).find(known);
    const lines = [];
    if (told > 0) lines.push(`${told === 1 ? "1 run" : `${told} runs`} diverged${rows.length ? ` (${rows.map((row) => label(row.name)).join(", ")})` : ""}: ${told === 1 ? "its returns are" : "their returns are"} not finite, and no score.`);
    else if (told === undefined) {
      const lost = study.rows.filter((row) => [...Object.values(row.envs), ...Object.values(row.aggregates)].some((e) => !known(e.value)));
      if (lost.length) lines.push(`Not every score is a number: a run diverged in ${lost.map((row) => label(row.name)).join(", ")}.`);
    }
    for (const failure of study.failures || []) lines.push(`Failed: ${failure.job} (${failure.why}; see ${failure.log})`);
    lines.push(...study.missing.map((line) => `Not here: ${line}`));
    return lines.length ? element("div", { class: "missing note" }, lines.map((line) => element("div", {}, line))) : null;
  }
  function verdict() {
    const count = (name) => study.claims.filter((claim) => claim.verdict === name).length;
    const seen = count("holds"), alike = count("no difference seen"), against = count("reversed") + count("differs");
    // What is no answer yet, each apart.
    const without = [["too few runs", "has too few runs", "have too few runs"], ["unfinished", "is unfinished", "are unfinished"],
      ["no score", "has no score", "have no score"], ["not run", "is not run", "are not run"]]
      .map(([name, one, more]) => [count(name), one, more]).filter(([number]) => number);
    const rest = study.claims.length - seen - alike - against - without.reduce((sum, [number]) => sum + number, 0);
    const best = study.rows.filter((row) => known(row.aggregates.iqm?.value))
      .sort((a, b) => b.aggregates.iqm.value - a.aggregates.iqm.value)[0];
    const lead = best && study.rows.length > 1
      ? [" Highest interquartile mean: ", element("strong", {}, label(best.name)), "."] : [];
    if (!study.claims.length) return [study.remark || "No claim of the paper is checked here.", ...lead];
    const parts = [];
    parts.push("Of what the paper says here, ", element("strong", {}, `${seen} of ${study.claims.length}`),
      seen === 1 ? " statements agrees with these runs" : " statements agree with these runs");
    if (against) parts.push(", ", element("strong", {}, String(against)), against === 1 ? " disagrees" : " disagree");
    if (rest) parts.push(", ", element("strong", {}, String(rest)), rest === 1 ? " stays open" : " stay open");
    for (const [number, one, more] of without) parts.push(", ", element("strong", {}, String(number)), ` ${number === 1 ? one : more}`);
    if (alike) parts.push("; for ", element("strong", {}, String(alike)), " no difference was seen, which contradicts nothing and proves nothing");
    parts.push(".");
    if (study.claims.some(provisional)) parts.push(" What is provisional stands on runs that are not all finished.");
    parts.push(...lead);
    return parts;
  }

  // Where there is no answer, none can change.
  const provisional = (claim) => Boolean((claim.so_far || claim.provisional) && claim.gap);
  function claims() {
    if (!study.claims.length) return [];
    const gaps = study.claims.filter((c) => c.gap && known(c.gap.value));
    const reach = Math.max(0.01, ...gaps.flatMap((c) => ends(c.gap).map(Math.abs)));
    const measured = gaps.some((c) => c.measure === "probability of improvement")
      ? "the probability that a run of the first beats one of the second, less a half"
      : `difference of mean scores, ${isRaw() ? "in the environment’s own units" : "normalised"}`;
    const intervals = !gaps.some((c) => hasInterval(c.gap)) ? "" : study.caveat ? ", with 95% intervals" : ", with 95% stratified bootstrap intervals";
    const bars = gaps.length ? `Bars: ${measured}${intervals}; the line is no difference. ` : "";
    return section("What the paper says, and what we see",
      element("ul", { class: "claims" }, study.claims.map((claim) =>
        element("li", {},
          element("span", { class: "verdict" }, element("span", { class: `badge ${claim.verdict.split(" ")[0]}` }, claim.verdict),
            provisional(claim) ? element("span", { class: "badge provisional" }, "provisional") : null),
          element("span", {}, claim.text, improvement(claim)),
          gaps.includes(claim) ? whisker(claim.gap, -reach, reach, "var(--ink)", true) : element("span"))
      )),
      element("p", { class: "caption" }, bars, study.caveat ? `${study.caveat} ` : "", "That rows are alike can be contradicted by few runs, never proved. ", study.remark));
  }
  function improvement(claim) {
    const e = claim.improvement, [first, second] = [claim.first, claim.second].map(label);
    if (!e || !known(e.value)) return null;
    const share = `${Math.round(100 * e.value)}%`, here = study.envs.length;
    const single = [claim.first, claim.second].every((name) => {
      const row = study.rows.find((r) => r.name === name);
      return row && Object.values(row.envs).every((env) => env.runs === 1);
    });
    const said = !single ? `a run of ${first} beats one of ${second} in ${share} of pairs${hasInterval(e) ? ` (${ends(e).map((v) => Math.round(100 * v)).join("–")})` : ""}`
      : here > 1 ? `one run of each: that of ${first} scored higher in ${share} of environments`
      : `one run of each: that of ${first} scored ${e.value === 0.5 ? "as high as" : e.value > 0.5 ? "higher than" : "lower than"} that of ${second}`;
    return element("small", {}, said);
  }
  function whisker(e, low, high, stroke, zero, width = 260) {
    const height = 26, pad = 6;
    const x = (v) => pad + (width - 2 * pad) * (Math.min(high, Math.max(low, v)) - low) / (high - low || 1);
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `width:${width}px;max-width:100%;height:26px`, "aria-label": [figures(e.value, e.low, e.high)[0], ...(hasInterval(e) ? [span(e)] : [])].join(", ") },
      zero ? svg("line", { x1: x(0), x2: x(0), y1: 2, y2: height - 2, class: "axis", style: "stroke:var(--faint)" }) : null,
      hasInterval(e) ? svg("line", { x1: x(e.low), x2: x(e.high), y1: height / 2, y2: height / 2, stroke, "stroke-width": 6, "stroke-linecap": "round", opacity: .28 }) : null,
      svg("ellipse", { cx: x(e.value), cy: height / 2, rx: 4.5, ry: 4.5, fill: stroke }));
  }

  // --- curves ------------------------------------------------------------------------------
  function curves() {
    const envs = study.envs.map((env) => env.name).filter((name) => study.rows.some((row) => row.curves[name]));
    if (!envs.length) return [];
    if (!envs.includes(shownEnv)) shownEnv = envs[0];
    const card = element("div", { class: "card" }), caption = element("p", { class: "caption" });
    function toggle(names) {
      const shown = names.some((name) => !hidden.has(name));
      for (const name of names) if (shown) hidden.add(name); else hidden.delete(name);
      keeping(draw);
    }
    function key(row, text) {
      return element("button", { class: "key", type: "button", "aria-pressed": String(visible(row)), "aria-label": label(row.name), "data-row": row.name, "data-id": `row ${row.name}`,
        onclick: () => toggle([row.name]) }, sample(row.name), text);
    }
    function keys() {
      const here = study.rows.filter((row) => row.curves[shownEnv]);
      const series = study.sweep.flatMap((panel) => Object.entries(panel.series));
      const lines = series.length < 2 ? [here.map((row) => key(row, label(row.name)))]
        : series.map(([name, points]) => [
            element("button", { class: "series", type: "button", "aria-pressed": String(points.some(([, row]) => !hidden.has(row))), "data-id": `series ${name}`,
              onclick: () => toggle(points.map(([, row]) => row)) }, label(name)),
            points.map(([at, row]) => [at, here.find((r) => r.name === row)]).filter(([, row]) => row).map(([at, row]) => key(row, swept(at)))]);
      if (here.length > 7) lines.unshift([
        element("button", { type: "button", "data-id": "all", onclick: () => { hidden.clear(); keeping(draw); } }, "All"),
        element("button", { type: "button", "data-id": "none", onclick: () => { for (const row of here) hidden.add(row.name); keeping(draw); } }, "None")]);
      return lines.map((line) => element("div", { class: lines.length > 2 ? "row tight" : "row", role: "group", "aria-label": "Rows" }, line.flat()));
    }
    function draw() {
      const tabs = envs.length > 1
        ? element("div", { class: "row", role: "group", "aria-label": "Environment" }, envs.map((name) =>
            element("button", { class: "tab", type: "button", "aria-pressed": String(name === shownEnv), "data-id": `env ${name}`,
              onclick: () => { shownEnv = name; keeping(draw); } }, name.replace(/^(minatar_|atari:|gym:)/, ""))))
        : null;
      const { box, dotted, banded } = chart(shownEnv);
      card.replaceChildren(...[tabs, ...keys(), box].filter(Boolean));
      const facts = study.envs.find((env) => env.name === shownEnv);
      caption.replaceChildren(facts.self_play ? "Evaluations against a random player" : "Mean return of the newest 100 training episodes",
        banded ? ", averaged over seeds; bands are 95% bootstrap intervals." : ".",
        dotted.length ? ` Dotted: ${dotted.map((name) => name === "random" ? "a random player" : `the reference (${name})`).join(" and ")}.` : "");
    }
    draw();
    return section("Learning curves", card, caption);
  }
  // Pieces of a line where there are numbers.
  function trace(values, point) {
    return values.map((v, k) => !known(v) ? "" : `${known(values[k - 1]) ? "L" : "M"}${point(v, k)}${known(values[k - 1]) || known(values[k + 1]) ? "" : "h0"}`).join("");
  }
  function chart(env) {
    const box = element("div", { class: "chart" });
    const [width, height] = [chartWidth(), window.innerWidth < 672 ? 270 : 400];
    const rows = study.rows.filter((row) => visible(row) && row.curves[env]);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Learning curves on ${env}`, class: rows.length > 7 ? "curves crowded" : "curves" });
    box.append(picture);
    const all = rows.map((row) => row.curves[env]).flatMap((c) => hasBand(c) ? [...c.value, ...c.low, ...c.high] : c.value).filter(known);
    if (!all.length) {
      picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, rows.length ? "No number to draw." : "Every row is switched off."));
      return { box, dotted: [], banded: false };
    }
    const facts = study.envs.find((e) => e.name === env);
    let low = Math.min(...all), high = Math.max(...all);
    const span = high - low || 1;
    // A far-away reference would flatten the curves.
    const lines = [[facts.random, "random"], [facts.reference, facts.who]]
      .filter(([value]) => known(value) && value > low - 0.35 * span && value < high + 0.35 * span);
    for (const [value] of lines) { low = Math.min(low, value); high = Math.max(high, value); }
    const room = 0.04 * (high - low || 1); low -= room; high += room;
    const last = Math.max(...rows.map((row) => row.curves[env].steps.at(-1)));
    const levels = ticks(low, high, 5), written = axis(levels);
    const margin = { left: roomFor(written), right: 14, top: 12, bottom: 44 };
    const x = (v) => margin.left + (width - margin.left - margin.right) * v / last;
    const y = (v) => height - margin.bottom - (height - margin.top - margin.bottom) * (v - low) / (high - low);
    levels.forEach((t, k) => picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(t), y2: y(t), class: "gridline" }),
      svg("text", { x: margin.left - 8, y: y(t) + 4, "text-anchor": "end" }, written[k])));
    const steps = ticks(0, last, width < 600 ? 4 : 8);
    axis(steps).forEach((text, k) => picture.append(
      svg("text", { x: x(steps[k]), y: height - margin.bottom + 20, "text-anchor": "middle" }, text)));
    picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom, class: "axis" }),
      svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, "environment steps"));
    for (const [value, name] of lines) picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value), class: "reference" }),
      name === "random"  // at the end away from the curves
        ? svg("text", { x: width - margin.right, y: y(value) - 5, "text-anchor": "end", class: "aside" }, name)
        : svg("text", { x: margin.left + 4, y: y(value) - 5, class: "aside" }, name));
    for (const { name, curves: { [env]: c } } of rows) {
      if (!hasBand(c)) continue;
      const corner = (v, k) => `${x(c.steps[k]).toFixed(1)},${y(v).toFixed(1)}`;
      // Each stretch of numbers is a shape of its own.
      const stretches = [[]];
      c.steps.forEach((_, k) => { if (known(c.low[k]) && known(c.high[k])) stretches.at(-1).push(k); else stretches.push([]); });
      for (const stretch of stretches) if (stretch.length) picture.append(svg("polygon", { class: "band", fill: colour(name),
        points: [...stretch.map((k) => corner(c.high[k], k)), ...stretch.map((k) => corner(c.low[k], k)).reverse()].join(" ") }));
    }
    rows.forEach(({ name, curves: { [env]: c } }, index) => {
      picture.append(svg("path", { class: "curve", stroke: colour(name), "stroke-dasharray": dash(name), "data-row": name,
        d: trace(c.value, (v, k) => `${x(c.steps[k]).toFixed(1)},${y(v).toFixed(1)}`) }));
      // A line through a single point cannot be seen; markers of neighbours stand at different steps.
      const every = Math.max(1, Math.round(c.steps.length / 6));
      if (c.steps.length === 1 || look(name).marker !== null) c.value.forEach((v, k) => {
        if (known(v) && (c.steps.length === 1 || (k + index) % every === 0)) picture.append(mark(name, x(c.steps[k]), y(v), 4));
      });
    });
    hover(box, picture, rows, env, { x, last, width, height, margin });
    return { box, dotted: lines.map(([, name]) => name), banded: rows.some((row) => hasBand(row.curves[env])) };
  }
  const roomFor = (written) => 16 + 6.8 * Math.max(3, ...written.map((text) => text.length));
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
      }).sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
      const at = near[0].at, values = figures(...near.map((n) => n.value));
      cross.setAttribute("x1", x(at)); cross.setAttribute("x2", x(at)); cross.setAttribute("visibility", "visible");
      tip.replaceChildren(element("b", {}, `${Math.round(at).toLocaleString("en")} steps`), ...near.map((n, k) =>
        element("div", {}, swatch(n.row.name), element("span", {}, label(n.row.name)), element("span", {}, values[k]))));
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
  const swept = (at) => Math.abs(at) >= 1e-6 ? minus(at.toLocaleString("en", { maximumSignificantDigits: 9 })) : minus(String(at));
  function sweep() {
    const score = (name) => study.rows.find((row) => row.name === name)?.aggregates.iqm;
    const panels = study.sweep.map((panel) => ({ ...panel, series: Object.entries(panel.series)
      .map(([name, points]) => ({ name, points: points.map(([at, row]) => ({ at, row, ...score(row) })).filter((p) => known(p.value)) }))
      .filter((series) => series.points.length) })).filter((panel) => panel.series.length);
    if (!panels.length) return [];
    const points = panels.flatMap((panel) => panel.series.flatMap((series) => series.points));
    let low = Math.min(...points.flatMap(ends)), high = Math.max(...points.flatMap(ends));
    const room = 0.08 * (high - low || 1); low -= room; high += room;
    const columns = Math.min(panels.length, window.innerWidth >= 960 ? 3 : window.innerWidth >= 672 ? 2 : 1);
    const width = (chartWidth() - 24 * (columns - 1)) / columns;
    const named = panels.flatMap((panel) => panel.series).length > 1;
    const scales = panels.map((panel) => panel.scale);
    const shape = scales.includes("symlog") ? "; the horizontal axis is logarithmic, with 0 at its left end"
      : scales.every((scale) => scale === "log") ? "; the horizontal axis is logarithmic" : "";
    return section("Score over the swept number",
      element("div", { class: "card panels", style: `grid-template-columns:repeat(${columns},minmax(0,1fr))` }, panels.map((panel) =>
        element("div", { class: "chart" },
          named ? element("div", { class: "row" }, panel.series.map((series) =>
            element("span", { class: "key note" }, svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: hue(look(series.points[0].row).hue), "stroke-width": 3 })), label(series.name)))) : null,
          sweepPanel(panel, named, width, low, high)))),
      element("p", { class: "caption" }, `Interquartile mean of ${isRaw() ? "scores in the environment’s own units" : "normalised scores"}${points.some(hasInterval) ? " with 95% intervals" : ""}${shape}.`));
  }
  function sweepPanel(panel, named, width, low, high) {
    const height = window.innerWidth < 672 || width < 480 ? 250 : 340;
    const levels = ticks(low, high, 5), written = axis(levels);
    const margin = { left: roomFor(written), right: 10, top: 12, bottom: 48 };
    const numbers = [...new Set(panel.series.flatMap((series) => series.points.map((p) => p.at)))].sort((a, b) => a - b);
    // Logarithmic, 0 has its place a factor of ten below the smallest other number.
    const least = Math.min(...numbers.filter((at) => at > 0));
    const along = (at) => panel.scale === "linear" ? at : Math.log10(at > 0 ? at : least / 10);
    const from = along(numbers[0]), to = along(numbers.at(-1));
    const inner = width - margin.left - margin.right - 36;
    const x = (at) => margin.left + 18 + (to > from ? inner * (along(at) - from) / (to - from) : inner / 2);
    // A label that would touch another goes a line lower, or away.
    const reached = [-Infinity, -Infinity];
    const labels = numbers.map((at) => {
      const text = swept(at), half = 3.5 * text.length, line = reached.findIndex((end) => x(at) - half > end + 5);
      if (line >= 0) reached[line] = x(at) + half;
      return { at, text, line };
    });
    if (labels.some(({ line }) => line === 1)) margin.bottom += 14;
    const y = (v) => height - margin.bottom - (height - margin.top - margin.bottom) * (v - low) / (high - low);
    const title = panel.field || (panel.series.length === 1 ? label(panel.series[0].name) : "number in the row’s name");
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Score over ${title}`, class: "sweep" });
    levels.forEach((t, k) => picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(t), y2: y(t), class: "gridline" }),
      svg("text", { x: margin.left - 8, y: y(t) + 4, "text-anchor": "end" }, written[k])));
    const bottom = height - margin.bottom;
    picture.append(svg("line", { x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom, class: "axis" }));
    for (const { at, text, line } of labels) {
      picture.append(svg("line", { x1: x(at), x2: x(at), y1: bottom, y2: bottom + 5, class: "axis" }));
      if (line >= 0) picture.append(svg("text", { class: "at", x: x(at), y: bottom + 18 + 14 * line, "text-anchor": "middle" }, text));
    }
    picture.append(svg("text", { class: "number", x: width - margin.right, y: height - 6, "text-anchor": "end" }, title));
    panel.series.forEach(({ points }, index) => {
      const nudge = (index - (panel.series.length - 1) / 2) * 5;
      picture.append(svg("path", { class: "curve", stroke: named ? hue(look(points[0].row).hue) : "var(--faint)",
        d: points.map((p, k) => `${k ? "L" : "M"}${(x(p.at) + nudge).toFixed(1)},${y(p.value).toFixed(1)}`).join("") }));
      for (const p of points) {
        if (hasInterval(p)) picture.append(svg("line", { x1: x(p.at) + nudge, x2: x(p.at) + nudge, y1: y(p.low), y2: y(p.high), stroke: colour(p.row), "stroke-width": 5, "stroke-linecap": "round", opacity: .3 }));
        picture.append(mark(p.row, x(p.at) + nudge, y(p.value), 4.5));
      }
    });
    return picture;
  }

  // --- tables ------------------------------------------------------------------------------
  // others: the numbers it stands among.
  function number(e, others) {
    if (!e || !known(e.value)) return ["–"];
    const least = others.some((other) => other && Math.abs(other.value) >= 0.1) ? 0.1 : 0;
    return [`${inFigures([e.value, e.low, e.high], least)[0]} `, hasInterval(e) ? element("small", {}, span(e, least)) : null];
  }
  function scores() {
    const rows = study.rows.filter((row) => row.aggregates.iqm);
    if (!rows.length) {
      const why = study.comparable ? "No row is finished in every environment yet." : "These environments share no measure, so their scores are not averaged.";
      return section("Scores", element("p", { class: "note" }, why));
    }
    const raw = isRaw(), several = study.envs.length > 1;
    const reach = rows.flatMap((row) => ends(row.aggregates.iqm));
    const low = Math.min(0, ...reach), high = Math.max(0, ...reach);
    const published = study.rows.some((row) => row.published);
    const who = [...new Set(study.envs.map((env) => env.who).filter(Boolean))].join("; ");
    const [episodes, evaluation] = ["the mean of its last 200 training episodes", "its last evaluation, against a random player"];
    const measure = study.envs.every((env) => env.self_play) ? evaluation
      : study.envs.some((env) => env.self_play) ? `${episodes} (for self-play: ${evaluation})` : episodes;
    const column = (title, kind) => element("th", { class: kind, scope: "col" }, title);
    return section("Scores",
      element("div", { class: "scroll" }, element("table", { id: "scores" },
        element("thead", {}, element("tr", {}, column("Row", "text"), column(several ? "Runs in all" : "Runs"), column("Interquartile mean"), column("", "bar"),
          column("Median"), column("Mean"), raw ? null : column("Optimality gap"), published ? column("In the paper, on Atari", "text") : null)),
        element("tbody", {}, study.rows.map((row) => {
          const a = row.aggregates, cell = (name) => element("td", {}, ...number(a[name], rows.map((r) => r.aggregates[name])));
          return element("tr", {},
            element("th", { scope: "row" }, swatch(row.name), label(row.name)),
            element("td", {}, row.wanted > row.finished ? `${row.finished} of ${row.wanted}` : String(row.finished)),
            cell("iqm"),
            element("td", { class: "bar" }, known(a.iqm?.value) ? whisker(a.iqm, low, high, colour(row.name), low < 0, 176) : ""),
            cell("median"), cell("mean"), raw ? null : cell("optimality_gap"),
            published ? element("td", { class: "text" }, row.published || "–") : null);
        })))),
      element("p", { class: "caption" }, `A run’s score is ${measure}, `,
        raw ? "in the environment’s own units: no reference is known" : `normalised so that a random player has 0 and the reference 1${who ? ` (${who})` : ""}`,
        several ? ". Runs are counted over all environments. Median: over environments, of the mean over seeds, as in the paper." : ".",
        rows.some((row) => hasInterval(row.aggregates.iqm)) ? " Small figures are 95% stratified bootstrap intervals." : "",
        rows.some((row) => row.provisional) ? " Rows whose runs are not all finished are provisional." : "",
        rows.filter((row) => row.uncounted).map((row) => ` Of ${label(row.name)}, ${row.counted} to an environment are counted; ${row.uncounted} more of some are not.`).join("")));
  }
  const breakable = (name) => name.split(/(?<=[_:/])/).flatMap((part, k) => (k ? [element("wbr"), part] : [part]));
  function games() {
    const finished = study.rows.filter((row) => Object.keys(row.envs).length);
    if (!finished.length) return [];
    const printed = Object.keys(study.published).length > 0;
    const heading = (title) => element("th", { scope: "col" }, title);
    const side = (...content) => element("th", { scope: "row" }, ...content);
    const cell = (row, env) => element("td", {}, ...number(row.envs[env.name], finished.map((r) => r.envs[env.name])));
    // The longer of the two goes down the page.
    const head = finished.length > 7 && finished.length > study.envs.length
      ? [heading("Row"), ...study.envs.map((env) => heading(env.name))]
      : [heading("Environment"), ...finished.map((row) => heading(label(row.name))), printed ? heading("In the paper") : null];
    const body = finished.length > 7 && finished.length > study.envs.length
      ? [...finished.map((row) => [side(swatch(row.name), label(row.name)), ...study.envs.map((env) => cell(row, env))]),
         ...(printed ? [[side("In the paper"), ...study.envs.map((env) => element("td", {}, study.published[env.name] || "–"))]] : [])]
      : study.envs.map((env) => [side(...breakable(env.name)), ...finished.map((row) => cell(row, env)), printed ? element("td", {}, study.published[env.name] || "–") : null]);
    return [element("h3", {}, "In each environment’s own units"),
      element("div", { class: "scroll" }, element("table", { id: "games" },
        element("thead", {}, element("tr", {}, head)),
        element("tbody", {}, body.map((line) => element("tr", {}, line)))))];
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
