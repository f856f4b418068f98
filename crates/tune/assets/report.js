"use strict";
// The page: reads the document of `tune --json` and builds one section after the other.

const report = JSON.parse(document.getElementById("data").textContent);

const SECTIONS = [
  ["summary", "Recommendation", summarySection],
  ["rows", "All settings", rowsSection],
  ["pareto", "Size against time", paretoSection],
  ["heat", "Buffers", heatSection],
  ["stages", "Where the time went", stagesSection],
  ["model", "Predicted and measured", modelSection],
  ["codecs", "Codecs", codecsSection],
  ["devices", "Devices", devicesSection],
  ["machine", "Machine and method", machineSection],
  ["notes", "Notes", notesSection],
];

/** A version alone is PostgreSQL's. */
function serverName(server) {
  return server.startsWith("SQL Server") ? server : "PostgreSQL " + server;
}

function pageHead() {
  const { source, machine } = report.facts;
  const place = (source.pgdata || "this source") + (machine.host ? " on " + machine.host : "");
  document.title = "Pagehaul tune: " + place;
  const facts = [
    whenText(report.started_at), "took " + timeText(report.elapsed_s),
    bytesText(source.source_bytes) + " in " + d3.format(",")(source.file_count) + " files",
    machine.server ? serverName(machine.server) : "", machine.pagehaul ? "pagehaul " + machine.pagehaul : "",
  ].filter(Boolean);
  document.getElementById("head").append(el("h1", {}, "Best settings for ", el("span", { class: "path" }, place)),
    el("p", { class: "intro" }, facts.join(" · ")));
}

/** What a row is called in a word or two, as a mark beside its setting. */
function badges(row) {
  const list = [];
  if (isRecommended(report, row)) list.push(["recommended", "good"]);
  if (row.role === "default") list.push(["default", "plain"]);
  if (row.role === "baseline") list.push(["baseline, output discarded", "plain"]);
  if (isOtherTool(row)) list.push(["other tool", "other"]);
  if (row.on_pareto_front) list.push(["front", "front"]);
  if (row.failed) list.push(["failed", "bad"]);
  return list.map(([text, kind]) => el("span", { class: "badge " + kind }, text));
}

function rowsSection() {
  const bytes = report.facts.source.source_bytes;
  const time = (seconds, spread) => isNumber(seconds)
    ? [timeText(seconds), el("small", {}, rateText(bytes / seconds)), spread > 0 ? el("small", {}, "±" + percentText(spread / 2)) : null] : NONE;
  const predicted = (said, measured) => isNumber(said)
    ? twoLines(timeText(said), isNumber(measured) && measured > 0 ? signedPercent(said / measured - 1) : "") : NONE;
  const unlessFailed = (value) => (row) => row.failed ? NONE : value(row);
  const keyed = (value) => (row) => row.failed ? null : value(row);
  const number = (name, value, cell, hint) => ({ name, numeric: true, hint, key: keyed(value), cell: unlessFailed(cell) });
  const columns = [
    { name: "Rank", key: (row) => row.rank > 0 ? row.rank : null, cell: (row) => row.rank > 0 ? String(row.rank) : NONE },
    { name: "Tool and setting", key: (row) => row.contestant + " " + row.setting, cell: settingCell },
    number("Backup", (row) => row.backup_s, (row) => time(row.backup_s, row.backup_spread), "median wall time, all bytes durable"),
    number("Restore", (row) => row.restore_s, (row) => time(row.restore_s, row.restore_spread), "median wall time, all bytes durable"),
    number("Stored", (row) => row.stored_bytes || null,
      (row) => row.stored_bytes > 0 ? twoLines(bytesText(row.stored_bytes), "ratio " + digits(row.ratio)) : NONE),
    number("CPU", (row) => row.backup_cpu_s, (row) => twoLines(timeText(row.backup_cpu_s), isNumber(row.restore_s) ? timeText(row.restore_cpu_s) : ""),
      "CPU time of the backup, and below of the restore; server included"),
    number("Memory", (row) => row.rss_bytes_max || null, (row) => row.rss_bytes_max > 0 ? bytesText(row.rss_bytes_max) : NONE, "largest, of the backup"),
    number("Predicted backup", (row) => row.predicted_backup_s, (row) => predicted(row.predicted_backup_s, row.backup_s), "what the model said, and by how much that is off"),
    number("Predicted restore", (row) => row.predicted_restore_s, (row) => predicted(row.predicted_restore_s, row.restore_s)),
    { name: "Limit", key: keyed((row) => row.backup_limit), cell: unlessFailed((row) => twoLines(row.backup_limit || NONE, row.restore_limit)), hint: "what limited the backup, and below the restore" },
    number("Score", (row) => row.rank > 0 ? row.score : null, (row) => row.rank > 0 ? digits(row.score) : NONE, "normalised time + normalised size; smaller is better"),
    { name: "Runs", numeric: true, key: (row) => row.runs, cell: (row) => String(row.runs) },
  ];
  return section("rows", "All settings that were measured",
    "Medians over the repetitions, best first; ± is half of the distance between slowest and fastest. CPU and limit are those of the backup, below them of the restore. Choose a column's name to sort by it.",
    report.rows.length ? sortableTable({
      id: "rows-table", caption: "All measured settings of Pagehaul, the baseline and the other tools", columns, rows: report.rows,
      sortedBy: "Rank", last: (row) => Boolean(row.failed),
      rowClass: (row) => isRecommended(report, row) ? "recommended" : row.failed ? "failed" : null,
    }) : el("p", {}, "No run was measured."));
}

function settingCell(row) {
  return [
    el("div", { class: "setting" }, isOtherTool(row) || !row.settings ? row.contestant + " " : null, el("code", {}, row.setting)),
    el("div", { class: "badges" }, badges(row)),
    row.failed ? el("div", { class: "reason" }, row.failed) : null,
  ];
}

function kindOf(row) {
  return isOtherTool(row) ? "other tool" : row.role === "default" ? "default" : "pagehaul";
}

/** The rows as points of size against `key`. */
function paretoPoints(key) {
  return report.rows.filter((row) => !row.failed && row.stored_bytes > 0 && isNumber(row[key])).map((row) => {
    const recommended = isRecommended(report, row);
    const label = recommended ? "recommended" : row.role === "default" ? "default" : isOtherTool(row) ? row.contestant : row.rank > 0 ? String(row.rank) : "";
    return {
      x: row.stored_bytes, y: row[key], kind: kindOf(row), front: row.on_pareto_front, recommended, label,
      priority: recommended ? 0 : row.role === "default" ? 1 : isOtherTool(row) ? 2 : 2 + (row.rank || 1000),
      title: (isOtherTool(row) ? row.contestant + " " : "") + row.setting + "\nbackup " + timeText(row.backup_s) + ", restore " + timeText(row.restore_s) +
        "\nstored " + bytesText(row.stored_bytes) + ", ratio " + digits(row.ratio) + (row.rank > 0 ? "\nrank " + row.rank : ""),
    };
  });
}

/** The fastest prediction of each codec and level that was not run: faint dots that show what lies around. */
function predictedPoints(way) {
  const measured = new Set(report.rows.filter((row) => row.settings).map((row) => row.settings.compression));
  const open = report.predictions.filter((prediction) => !measured.has(prediction.settings.compression));
  const best = d3.rollups(open, (group) => d3.least(group, (prediction) => prediction[way].wall_s), (prediction) => prediction.settings.compression)
    .filter(([, prediction]) => prediction.stored_bytes > 0 && isNumber(prediction[way].wall_s));
  return best.map(([, prediction]) => ({
    x: prediction.stored_bytes, y: prediction[way].wall_s,
    title: settingsText(prediction.settings) + "\npredicted, not run: " + timeText(prediction[way].wall_s) + "\nstored " + bytesText(prediction.stored_bytes),
  }));
}

function paretoSection() {
  const ways = [["backup", "backup_s"], ["restore", "restore_s"]].map(([way, key]) => [way, paretoPoints(key), predictedPoints(way)])
    .filter(([, points]) => points.length > 0);
  if (!ways.length) return section("pareto", "Size against time", "There is nothing to draw: no run that stored anything was measured to its end.");
  const baseline = report.rows.find((row) => row.role === "baseline" && !row.failed && isNumber(row.backup_s));
  const words = "Left is smaller, down is faster. Numbers are ranks of the table above. " +
    (baseline ? "Reading everything and storing nothing took " + timeText(baseline.backup_s) + "." : "");
  return section("pareto", "Size against time", words,
    legend([["Pagehaul", "circle one"], ["Pagehaul with its defaults", "diamond two"], ["other tools", "square three"], ["filled: on the front, nothing else is smaller and faster both ways", "circle filled"],
      ["recommended", "ring"], ["best of what this chart shows", "dashes"]].concat(ways.some(([, , predicted]) => predicted.length) ? [["predicted only", "small"]] : [])),
    el("div", { class: "charts" }, ways.map(([way, points, predicted]) => chart("Stored size and time of the " + way,
      (width) => paretoPlot(width, points, predicted, "stored", way + " time"), { id: "pareto-" + way }))));
}

/** What two points share that differ in buffers and transfer size only. */
function besideBuffers(settings) {
  return JSON.stringify({ ...settings, buffer_count: 0, transfer_size_bytes: 0 });
}

/** Cells of the largest grid over buffers and transfer size, the recommended point's if there are several as large. */
function heatCells() {
  const cells = new Map();
  const put = (settings, seconds, measured, extra) => {
    const group = besideBuffers(settings);
    if (!cells.has(group)) cells.set(group, new Map());
    const key = settings.buffer_count + "x" + settings.transfer_size_bytes;
    const said = measured && cells.get(group).get(key);
    cells.get(group).set(key, {
      settings, count: settings.buffer_count, transfer: settings.transfer_size_bytes, seconds, measured,
      recommended: Boolean(report.recommendation) && JSON.stringify(report.recommendation.settings) === JSON.stringify(settings),
      title: countText(settings.buffer_count, "buffer", "buffers") + " of " + settingSize(settings.transfer_size_bytes) + "\nbackup " + timeText(seconds) +
        (measured ? " measured" : " predicted") + (said ? ", predicted " + timeText(said.seconds) : "") + extra,
    });
  };
  for (const prediction of report.predictions) put(prediction.settings, prediction.backup.wall_s, false, "\nmemory at most " + bytesText(prediction.memory_bytes));
  for (const row of report.rows) if (row.settings && !row.failed && row.stored_bytes > 0) put(row.settings, row.backup_s, true, "\nmemory " + bytesText(row.rss_bytes_max));
  const own = report.recommendation && report.recommendation.settings ? besideBuffers(report.recommendation.settings) : "";
  const groups = Array.from(cells, ([group, inGroup]) => ({ group, cells: Array.from(inGroup.values()) }))
    .filter(({ cells: list }) => new Set(list.map((cell) => cell.count)).size > 1 && new Set(list.map((cell) => cell.transfer)).size > 1);
  return d3.greatest(groups, (a, b) => a.cells.length - b.cells.length || (a.group === own) - (b.group === own));
}

function heatSection() {
  const grid = heatCells();
  if (!grid) return section("heat", "Buffers", "Buffer count and transfer size were not varied together in this run, so there is nothing to draw here.");
  const settings = grid.cells[0].settings;
  return section("heat", "Buffers",
    "Time of a backup over the number of transfer buffers and the size of one, everything else as " + settings.compression + " with " +
      countText(settings.readers, "reader", "readers") + ", " + countText(settings.encoders, "encoder", "encoders") + " and " + countText(settings.stripes, "stripe", "stripes") + ". Darker is faster.",
    legend([["measured, bold with a dot", "dot"], ["recommended", "outline"]]),
    chart("Backup time by buffers and transfer size", (width) => heatPlot(Math.min(width, 860), grid.cells), { id: "heat-map" }));
}

/** One run's mean over the repetitions of a row: stage by stage. */
function meanStages(trials, way) {
  const runs = trials.map((trial) => trial[way]).filter((run) => run && run.stages.length > 0);
  if (!runs.length) return null;
  const stages = runs[0].stages.map((stage) => {
    const same = runs.flatMap((run) => run.stages.filter((other) => other.stage === stage.stage));
    const mean = (key) => d3.mean(same, (one) => one[key]);
    return { stage: stage.stage, threads: stage.threads, busy_s: mean("busy_s"), wait_input_s: mean("wait_input_s"), wait_output_s: mean("wait_output_s") };
  });
  return { stages, runs: runs.length, wall_s: median(runs.map((run) => run.wall_s)) };
}

const STAGE_CARDS_OPEN = 6;

function stageCard(row) {
  const trials = report.trials.filter((trial) => !trial.failed && trial.contestant === row.contestant && trial.setting === row.setting);
  const ways = ["backup", "restore"].map((way) => [way, meanStages(trials, way)]).filter(([, mean]) => mean);
  if (!ways.length) return null;
  return el("article", { class: "card" }, el("h3", {}, el("code", {}, row.setting), " ", badges(row)),
    ways.map(([way, mean]) => chart(way + ", " + timeText(mean.wall_s) + (mean.runs > 1 ? ", mean of " + mean.runs + " runs" : ""),
      (width) => stagePlot(width, mean.stages), { class: "stage" })));
}

function stagesSection() {
  const weight = (row) => isRecommended(report, row) ? 0 : row.role === "default" ? 1 : row.role === "baseline" ? 2 : 3;
  const cards = d3.sort(report.rows.filter((row) => !row.failed), weight).map(stageCard).filter(Boolean);
  if (!cards.length) return section("stages", "Where the time went", "No run said where its time went.");
  const more = cards.slice(STAGE_CARDS_OPEN);
  return section("stages", "Where the time went",
    "Share of each stage's threads' time. The stage that is busy nearly all of the time is the limit; the stages before it wait for output, those after it for input.",
    legend([["busy", "bar busy"], ["waiting for input", "bar wait-input"], ["waiting for output", "bar wait-output"]]),
    el("div", { class: "cards" }, cards.slice(0, STAGE_CARDS_OPEN)),
    more.length ? el("details", {}, el("summary", {}, countText(more.length, "more setting", "more settings")), el("div", { class: "cards" }, more)) : null);
}

function modelSection() {
  const points = report.trials.filter((trial) => trial.predicted && !trial.failed).flatMap((trial) => ["backup", "restore"]
    .filter((way) => trial[way]).map((way) => ({
      way, measured: trial[way].wall_s, predicted: trial.predicted[way].wall_s,
      title: trial.setting + "\n" + way + ", round " + trial.repetition + "\nmeasured " + timeText(trial[way].wall_s) + "\npredicted " + timeText(trial.predicted[way].wall_s),
    }))).filter((point) => isNumber(point.measured) && isNumber(point.predicted));
  const error = report.model_error;
  const words = error.runs > 0
    ? "The model was off by " + percentText(error.median) + " in the middle and by " + percentText(error.worst) + " at worst, over " + countText(error.runs, "run", "runs") +
      ". A point on the dashed line was predicted exactly; above it the model was too slow, below it too fast."
    : "No measured run had been predicted, so nothing can be said of the model.";
  if (!points.length) return section("model", "Predicted and measured", words);
  return section("model", "Predicted and measured", words, legend([["backup", "circle one"], ["restore", "triangle three"]]),
    chart("Predicted and measured wall time of each run", (width) => scatterPlot(width, points), { id: "model-scatter" }));
}

function codecsSection() {
  const { codecs, sample_bytes, strata, check_bytes_per_s, hash_bytes_per_s } = report.facts.sample;
  if (!codecs.length) return section("codecs", "Codecs on this data", "No sample was taken.");
  const frames = new Set(codecs.map((codec) => codec.frame_size_bytes));
  const table = sortableTable({
    id: "codecs-table", caption: "Codecs and levels on a sample of this data, one core", rows: codecs, sortedBy: null, columns: [
      { name: "Codec", key: (codec) => codec.compression, cell: (codec) => el("code", {}, codec.compression) },
      { name: "Frame", numeric: true, key: (codec) => codec.frame_size_bytes, cell: (codec) => settingSize(codec.frame_size_bytes) },
      { name: "Ratio", numeric: true, key: (codec) => codec.ratio, cell: (codec) => digits(codec.ratio) },
      { name: "Encode", numeric: true, key: (codec) => codec.encode_bytes_per_s, cell: (codec) => rateText(codec.encode_bytes_per_s) },
      { name: "Decode", numeric: true, key: (codec) => codec.decode_bytes_per_s, cell: (codec) => rateText(codec.decode_bytes_per_s) },
    ],
  });
  const kinds = strata.filter((stratum) => stratum.source_bytes > 0).map((stratum) => stratum.name + " " + bytesText(stratum.source_bytes));
  return section("codecs", "Codecs on this data",
    "Each codec on " + bytesText(sample_bytes) + " of real pages, in memory, on one core with nothing else to do" + (frames.size > 1 ? "; frames of several sizes" : "") + ".",
    el("div", { class: "charts" },
      el("div", {}, codecLegend(codecs), chart("Ratio and encoding speed", (width) => codecPlot(width, codecs), { id: "codec-plot" })), table),
    pairs([["What the source holds", kinds.join(", ")], ["Page checks and CRC32C", rateText(check_bytes_per_s) + " on one core"], ["XXH3 of stored bytes", rateText(hash_bytes_per_s) + " on one core"]]));
}

function devicesSection() {
  const devices = report.facts.devices;
  const rows = [["Reading the source", devices.read], ["Writing stripes, synced", devices.write], ["Reading stripes back", devices.stripe_read], ["Writing restored files, synced", devices.restore_write]]
    .flatMap(([what, speeds]) => {
      const best = d3.max(speeds, (speed) => speed.bytes_per_s);
      return speeds.map((speed) => ({ what, best: speed.bytes_per_s === best, ...speed }));
    });
  if (!rows.length) return section("devices", "Devices alone", "The devices were not measured alone.");
  const cache = { warm: "from the page cache", cold: "from the device, cache dropped", mixed: "partly from the page cache", unknown: "cache state not known" };
  return section("devices", "Devices alone", "What reading and writing give with nothing else to do. The source was read " + (cache[devices.read_cache] || cache.unknown) + ".",
    sortableTable({
      id: "devices-table", caption: "Speed of each side alone, by threads", rows, columns: [
        { name: "Side", key: (row) => row.what, cell: (row) => row.what },
        { name: "Threads", numeric: true, key: (row) => row.threads, cell: (row) => String(row.threads) },
        { name: "Speed", numeric: true, key: (row) => row.bytes_per_s, cell: (row) => row.best ? el("strong", {}, rateText(row.bytes_per_s)) : rateText(row.bytes_per_s) },
        { name: "CPU for each GB", numeric: true, key: (row) => row.cpu_s_per_byte, cell: (row) => timeText(row.cpu_s_per_byte * 1e9) },
      ],
    }),
    pairs([
      ["Beside the data path, a backup takes", timeText(devices.backup_fixed_s)], ["Beside the data path, a restore takes", timeText(devices.restore_fixed_s)],
      ["Each file costs a backup", timeText(devices.backup_file_s)], ["Each file costs a restore", timeText(devices.restore_file_s)],
    ]));
}

/** How the trials were done, told from the trials themselves. */
function methodLines() {
  const done = report.trials.filter((trial) => !trial.failed);
  const lines = [];
  const rounds = d3.max(done, (trial) => trial.repetition) || 0;
  const settings = new Set(done.map((trial) => trial.contestant + " " + trial.setting)).size;
  lines.push(countText(done.length, "run", "runs") + " of " + countText(settings, "setting", "settings") + " in up to " + countText(rounds, "round", "rounds") +
    (report.trials.length > done.length ? "; " + (report.trials.length - done.length) + " more failed" : "") + ".");
  const inTurns = rounds > 1 && report.trials.every((trial, index) => index === 0 || trial.repetition >= report.trials[index - 1].repetition);
  if (inTurns) lines.push("The rounds went over all settings in turns, so that a drift of the machine hits all alike.");
  const caches = (way) => d3.rollups(done.filter((trial) => trial[way]), (group) => group.length, (trial) => trial[way].cache)
    .map(([cache, count]) => count + " " + (cache === "unknown" ? "not known" : cache)).join(", ");
  lines.push("Page cache before the run: of the source, " + (caches("backup") || NONE) + "; of the stripes, " + (caches("restore") || NONE) + ".");
  const compared = done.filter((trial) => trial.bytes_equal !== null && trial.bytes_equal !== undefined);
  const equal = compared.filter((trial) => trial.bytes_equal).length;
  lines.push(compared.length === 0 ? "Restored files were not compared with what was backed up."
    : "Restored files were compared with what was read from the source in " + countText(compared.length, "run", "runs") + ": equal in " + (equal === compared.length ? "all." : equal + " only."));
  lines.push("Wall times end when the output is durable. CPU is that of the tool, its children and the server.");
  return lines;
}

function machineSection() {
  const { machine, source } = report.facts;
  return section("machine", "Machine and method", null,
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, "Machine"), pairs([
        ["Host", machine.host], ["Processor", machine.processor], ["Cores to use", String(machine.cores)], ["Memory", bytesText(machine.memory_bytes)],
        ["System", machine.system], ["Server", serverName(machine.server)], ["pagehaul", machine.pagehaul],
        ["Data directory", source.pgdata], ["System identifier", String(source.system_identifier)],
      ])),
      el("div", {}, el("h3", {}, "How it was measured"), el("ul", {}, methodLines().map((line) => el("li", {}, line))))),
    report.command ? copyable("The command of this run", report.command) : null);
}

function notesSection() {
  if (!report.notes.length) return section("notes", "Notes", "Nothing unusual happened.");
  return section("notes", "Notes", null, el("ul", { class: "notes" }, report.notes.map((note) => el("li", {}, note))));
}

function pageFoot() {
  const licences = el("details", {}, el("summary", {}, "Licences of the drawing library"), el("pre", {}, document.getElementById("licences").textContent));
  document.getElementById("foot").append(el("p", {}, "Made by pagehaul tune. This page loads nothing from anywhere; all figures are in this file."), licences);
}

/** On paper nothing can be unfolded. */
function unfoldForPrint() {
  const folded = [];
  window.addEventListener("beforeprint", () => {
    folded.push(...document.querySelectorAll("main details:not([open])"));
    folded.forEach((details) => { details.open = true; });
    drawLater.forEach((draw) => guard("print", draw));
  });
  window.addEventListener("afterprint", () => folded.splice(0).forEach((details) => { details.open = false; }));
}

function drawPage() {
  guard("head", pageHead);
  const main = document.getElementById("main");
  main.replaceChildren();
  for (const [id, title, make] of SECTIONS) {
    const made = guard(title, () => make(report));
    if (made) {
      main.append(made);
      document.getElementById("contents").append(el("a", { href: "#" + id }, title), " ");
    }
  }
  drawLater.forEach((draw) => guard("chart", draw));
  guard("foot", pageFoot);
  unfoldForPrint();
  document.documentElement.dataset.state = "drawn";
}

guard("page", drawPage);
