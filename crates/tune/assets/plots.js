"use strict";
// Charts. Colours are variables of the style sheet, so that light, dark and paper need no second drawing.

/** A chart that is drawn again when its width changes; `draw(width)` gives an element, or null for nothing to show. */
function chart(caption, draw, attributes) {
  const place = el("div", { class: "plot" });
  const figure = el("figure", attributes, place, el("figcaption", {}, caption));
  let width = 0;
  const redraw = () => {
    const now = Math.max(280, Math.floor(place.clientWidth));
    if (now === width || place.clientWidth === 0) return;
    width = now;
    place.replaceChildren(draw(now));
  };
  new ResizeObserver(() => requestAnimationFrame(() => guard(caption, redraw))).observe(place);
  drawLater.push(redraw);
  return figure;
}

/** What is drawn once the page has its layout. */
const drawLater = [];

/** Runs `work`; an error is shown and does not keep the rest of the page away. */
function guard(name, work) {
  try {
    return work();
  } catch (error) {
    tellProblem(name + ": " + (error && error.message || error));
    return null;
  }
}

const PLOT_STYLE = { fontFamily: "inherit", fontSize: "12px", overflow: "visible" };

/** A legend of our own marks, as a list: swatches are coloured by the style sheet. */
function legend(entries) {
  return el("ul", { class: "legend" }, entries.map(([name, kind]) =>
    el("li", {}, el("span", { class: "swatch " + kind, "aria-hidden": "true" }), name)));
}

/** Few enough ticks that their labels do not touch. */
function tickCount(width) {
  return Math.max(3, Math.floor(width / 95));
}

/** Values that are easy to read on an axis of seconds. */
const TIME_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400];
/** As TIME_STEPS, for logarithmic axes: closer together. */
const TIME_MARKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 90, 120, 180, 300, 420, 600, 900, 1200, 1800, 2700, 3600, 7200, 10800, 18000, 36000, 86400];
/** Values that are easy to read on a logarithmic axis, each from 1 to 10; the first that gives enough of them is used. */
const LOG_STEPS = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]];

/** A scale for `values`: logarithmic if they spread wide, with ticks and a little room; `isTime` if they are seconds. */
function scaleOf(values, count, isTime) {
  const [low, high] = d3.extent(values);
  const type = low > 0 && high / low > 2.5 ? "log" : "linear";
  const room = type === "log" ? Math.pow(high / low, 0.05) : (high - low || high || 1) * 0.06;
  const domain = type === "log" ? [low / room, high * room] : [Math.max(0, low - room), high + room];
  const ticks = type === "log" ? logTicks(domain, count, isTime) : isTime ? timeTicks(domain, count) : d3.ticks(domain[0], domain[1], count);
  return { type, domain, ticks, tickFormat: isTime ? timeTick : plainTick, grid: true };
}

function timeTicks([low, high], count) {
  const step = TIME_STEPS.find((one) => (high - low) / one <= count + 1) || (high - low) / count;
  return d3.range(Math.ceil(low / step) * step, high, step);
}

function logTicks([low, high], count, isTime) {
  const inside = (value) => value >= low && value <= high;
  const decades = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const ofSteps = (steps) => decades.flatMap((decade) => steps.map((step) => step * Math.pow(10, decade))).filter(inside);
  const choices = isTime ? [TIME_STEPS.filter(inside), TIME_MARKS.filter(inside)] : LOG_STEPS.map(ofSteps);
  const fitting = choices.filter((ticks) => ticks.length <= count + 1);
  return fitting[fitting.length - 1] || choices[0].filter((_, index) => index % 2 === 0);
}

/** Ticks are round: no digits after those that count. */
function timeTick(value) {
  const round = (number) => String(Number(number.toPrecision(3)));
  if (value < 120) return round(value) + " s";
  if (value >= 7200) return round(value / 3600) + " h";
  return value % 60 < 1 ? round(value / 60) + " min" : timeText(value);
}

function plainTick(value) {
  return bytesText(value).replace(/(\.\d*?)0+ /, "$1 ").replace(/\. /, " ");
}

function rateTick(value) {
  return plainTick(value) + "/s";
}

/**
 * Stored size against time, one dot a row. `points` have x, y, kind, label, priority, title; `front` is whether the dot
 * is filled. The line joins what no other dot beats in both of the two shown values.
 */
function paretoPlot(width, points, predicted, xLabel, yLabel) {
  const line = staircase(points);
  const colour = { domain: KINDS.map(([kind]) => kind), range: KINDS.map(([, , color]) => color) };
  const symbol = { domain: colour.domain, range: KINDS.map(([, symbolName]) => symbolName) };
  const mark = { x: "x", y: "y", r: 5, symbol: "kind", stroke: "kind", strokeWidth: 2 };
  const options = (texts) => ({
    width, height: Math.round(Math.min(440, Math.max(300, width * 0.62))), style: PLOT_STYLE,
    marginLeft: 68, marginBottom: 44, marginTop: 30, marginRight: 24, insetBottom: 18,
    x: { ...scaleOf([...points, ...predicted].map((point) => point.x), tickCount(width), false), label: xLabel },
    y: { ...scaleOf([...points, ...predicted].map((point) => point.y), 7, true), label: yLabel },
    color: colour, symbol,
    marks: [
      Plot.line(line, { x: "x", y: "y", curve: "step-after", stroke: "var(--front)", strokeWidth: 1.5, strokeDasharray: "5 4" }),
      Plot.dot(predicted, { x: "x", y: "y", r: 2.5, fill: "var(--muted)", fillOpacity: 0.7 }),
      Plot.dot(points.filter((point) => point.recommended), { x: "x", y: "y", r: 11, stroke: "var(--good)", strokeWidth: 2.5 }),
      ...[true, false].flatMap((own) => [false, true].map((front) => Plot.dot(
        points.filter((point) => point.front === front && (point.kind === "pagehaul") === own),
        { ...mark, fill: front ? "kind" : "var(--surface)" }))),
      ...texts.map((text) => Plot.text([text], {
        x: "x", y: "y", text: "label", dx: text.dx, dy: text.dy, textAnchor: text.anchor, fill: "var(--text)",
        stroke: "var(--surface)", strokeWidth: 4, fontWeight: text.recommended ? 700 : 400,
      })),
      Plot.tip([...points, ...predicted], Plot.pointer({ x: "x", y: "y", title: "title", maxRadius: 30, fontSize: 12 })),
    ],
  });
  return Plot.plot(options(placeLabels(points, Plot.plot(options([])), width)));
}

/** Marks of the rows: kind, symbol, colour, words. */
const KINDS = [
  ["pagehaul", "circle", "var(--series-1)", "Pagehaul"],
  ["default", "diamond2", "var(--series-2)", "Pagehaul with its defaults"],
  ["other tool", "square2", "var(--series-3)", "other tools"],
];

/** The points that no other beats in both values, from small and slow to large and fast. */
function staircase(points) {
  const sorted = points.filter((point) => isNumber(point.x) && isNumber(point.y)).sort((a, b) => a.x - b.x || a.y - b.y);
  let best = Infinity;
  return sorted.filter((point) => point.y < best && ((best = point.y), true));
}

const LABEL_HEIGHT = 14;
const LABEL_CHARACTER = 7.2;
const DOT_RADIUS = 7;

/** Where labels go: the most important first, each at the first side where it hits nothing, or left out. */
function placeLabels(points, drawn, width) {
  const [x, y] = ["x", "y"].map((name) => drawn.scale(name));
  const dots = points.map((point) => box(x.apply(point.x) - DOT_RADIUS, y.apply(point.y) - DOT_RADIUS, 2 * DOT_RADIUS, 2 * DOT_RADIUS));
  const taken = [];
  const placed = [];
  points.map((point, index) => ({ point, index })).filter(({ point }) => point.label)
    .sort((a, b) => a.point.priority - b.point.priority)
    .forEach(({ point, index }) => {
      const length = point.label.length * LABEL_CHARACTER * (point.recommended ? 1.15 : 1);
      const gap = point.recommended ? 15 : 9;
      const sides = [
        [gap, 0, "start"], [-gap, 0, "end"], [0, -gap - 5, "middle"], [0, gap + 6, "middle"],
        [gap, -gap - 3, "start"], [-gap, -gap - 3, "end"], [gap, gap + 3, "start"], [-gap, gap + 3, "end"],
      ];
      for (const [dx, dy, anchor] of sides) {
        const left = x.apply(point.x) + dx - (anchor === "end" ? length : anchor === "middle" ? length / 2 : 0);
        const area = box(left, y.apply(point.y) + dy - LABEL_HEIGHT / 2, length, LABEL_HEIGHT);
        const others = dots.filter((_, other) => other !== index);
        const isFree = ![...taken, ...others].some((other) => overlaps(area, other));
        const isInside = left > 68 && left + length < width && area.bottom < y.range[0] + 16;
        if (isFree && isInside) {
          taken.push(area);
          placed.push({ ...point, dx, dy, anchor });
          return;
        }
      }
    });
  return placed;
}

function box(left, top, width, height) {
  return { left, top, right: left + width, bottom: top + height };
}

function overlaps(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/** Seconds over transfer size and buffer count; `cells` have transfer, count, seconds, measured, recommended, title. */
function heatPlot(width, cells) {
  const transfers = d3.sort(new Set(cells.map((cell) => cell.transfer)));
  const counts = d3.sort(new Set(cells.map((cell) => cell.count)), d3.descending);
  const [low, high] = d3.extent(cells, (cell) => cell.seconds);
  const shade = (seconds) => d3.interpolateBlues(0.9 - 0.8 * (high > low ? (seconds - low) / (high - low) : 0));
  const ink = (cell) => d3.lab(shade(cell.seconds)).l > 58 ? "#10151b" : "#ffffff";
  const place = { x: "transfer", y: "count" };
  return Plot.plot({
    width, height: 70 + counts.length * 38, style: PLOT_STYLE, marginLeft: 56, marginBottom: 44, padding: 0.06,
    x: { label: "transfer size", domain: transfers, tickFormat: settingSize },
    y: { label: "buffers", domain: counts },
    marks: [
      Plot.cell(cells, { ...place, fill: (cell) => shade(cell.seconds), title: "title" }),
      Plot.cell(cells.filter((cell) => cell.recommended), { ...place, fill: "none", stroke: "var(--good)", strokeWidth: 3.5 }),
      Plot.text(cells, {
        ...place, fill: ink, fontWeight: (cell) => cell.measured ? 700 : 400, pointerEvents: "none",
        text: (cell) => timeText(cell.seconds) + (cell.measured ? " ●" : ""),
      }),
      Plot.tip(cells, Plot.pointer({ ...place, title: "title", fontSize: 12 })),
    ],
  });
}

const WAITS = [
  ["busy_s", "busy", "var(--busy)"],
  ["wait_input_s", "waiting for input", "var(--wait-input)"],
  ["wait_output_s", "waiting for output", "var(--wait-output)"],
];

/** Shares of the threads' time of each stage, as stacked bars. */
function stagePlot(width, stages) {
  const bars = stages.flatMap((stage) => {
    const total = d3.sum(WAITS, ([key]) => stage[key]);
    return WAITS.map(([key, what]) => ({
      stage: stage.stage + " × " + stage.threads, what, share: total > 0 ? stage[key] / total : 0,
      title: stage.stage + ": " + what + " " + timeText(stage[key]) + " of " + timeText(total) + " of all its threads",
    }));
  });
  return Plot.plot({
    width, height: 34 + stages.length * 24, style: PLOT_STYLE, marginLeft: 122, marginRight: 18, marginTop: 4, marginBottom: 26,
    x: { label: null, domain: [0, 1], ticks: 4, tickFormat: (share) => Math.round(share * 100) + " %", grid: true },
    y: { label: null, domain: stages.map((stage) => stage.stage + " × " + stage.threads), padding: 0.24 },
    color: { domain: WAITS.map(([, what]) => what), range: WAITS.map(([, , color]) => color) },
    marks: [
      Plot.barX(bars, { x: "share", y: "stage", z: "what", fill: "what", title: "title", order: WAITS.map(([, what]) => what) }),
      Plot.ruleX([0]),
      Plot.tip(bars, Plot.pointer(Plot.stackX({ x: "share", y: "stage", z: "what", title: "title", order: WAITS.map(([, what]) => what), fontSize: 12 }))),
    ],
  });
}

/** Predicted against measured seconds; `points` have measured, predicted, way, title. */
function scatterPlot(width, points) {
  const shown = Math.min(width, 620);
  const scale = scaleOf(points.flatMap((point) => [point.measured, point.predicted]), tickCount(shown), true);
  return Plot.plot({
    width: shown, height: shown * 0.75, style: PLOT_STYLE, marginLeft: 60, marginBottom: 44, marginTop: 28,
    x: { ...scale, label: "measured" },
    y: { ...scale, label: "predicted" },
    color: { domain: ["backup", "restore"], range: ["var(--series-1)", "var(--series-3)"] },
    symbol: { domain: ["backup", "restore"], range: ["circle", "triangle2"] },
    marks: [
      Plot.line(scale.domain.map((end) => ({ end })), { x: "end", y: "end", stroke: "var(--muted)", strokeDasharray: "4 4" }),
      Plot.dot(points, { x: "measured", y: "predicted", stroke: "way", symbol: "way", strokeWidth: 2, r: 4.5 }),
      Plot.tip(points, Plot.pointer({ x: "measured", y: "predicted", title: "title", maxRadius: 30, fontSize: 12 })),
    ],
  });
}

const FAMILY_SYMBOLS = ["circle", "diamond2", "square2", "triangle2"];

function codecFamilies(codecs) {
  return Array.from(new Set(codecs.map((codec) => codec.compression.split(":")[0])));
}

/** The legend of codecPlot. */
function codecLegend(codecs) {
  const swatches = ["circle one", "diamond two", "square three", "triangle four"];
  return legend(codecFamilies(codecs).map((family, index) => [family, swatches[index % 4]]));
}

/** Ratio against encoding speed of one core, a dot a codec and level. */
function codecPlot(width, codecs) {
  const families = codecFamilies(codecs);
  const dots = codecs.map((codec) => ({ ...codec, family: codec.compression.split(":")[0], x: codec.encode_bytes_per_s,
    title: codec.compression + "\nframes of " + settingSize(codec.frame_size_bytes) + "\nratio " + digits(codec.ratio) +
      "\nencodes " + rateText(codec.encode_bytes_per_s) + ", decodes " + rateText(codec.decode_bytes_per_s) }));
  return Plot.plot({
    width, height: Math.round(Math.min(380, Math.max(260, width * 0.5))), style: PLOT_STYLE, marginLeft: 44, marginBottom: 44, marginTop: 28, marginRight: 24,
    x: { ...scaleOf(dots.map((dot) => dot.x), tickCount(width), false), tickFormat: rateTick, label: "encoding, one core" },
    y: { label: "ratio", grid: true, ticks: 6, insetTop: 10, insetBottom: 10 },
    color: { domain: families, range: families.map((_, index) => "var(--series-" + (index % 4 + 1) + ")") },
    symbol: { domain: families, range: families.map((_, index) => FAMILY_SYMBOLS[index % 4]) },
    marks: [
      Plot.dot(dots, { x: "x", y: "ratio", stroke: "family", symbol: "family", r: 4.5, strokeWidth: 2 }),
      Plot.tip(dots, Plot.pointer({ x: "x", y: "ratio", title: "title", maxRadius: 30, fontSize: 12 })),
    ],
  });
}
