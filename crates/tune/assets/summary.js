"use strict";
// The part for the person who decides: what to use, what it takes, why, how sure, and what the next step costs.

function summarySection(report) {
  const recommended = report.recommendation;
  if (!recommended) {
    return section("summary", "Recommendation", null,
      el("p", { class: "banner bad" }, "Nothing is recommended: no run was measured to its end. The notes and the failed rows below say why."));
  }
  return section("summary", "Recommendation", null,
    headline(report, recommended), boundsBanner(recommended), tiles(report, recommended),
    el("div", { class: "columns" }, reasons(recommended), settingsList(recommended)),
    nextSteps(recommended), commandBlocks(recommended), notesPointer(report));
}

function headline(report, recommended) {
  const settings = recommended.settings;
  const words = settings
    ? settings.compression + ", " + countText(settings.encoders, "encoder", "encoders") + ", " + countText(settings.stripes, "stripe", "stripes")
    : recommended.row.setting;
  const isDefault = recommended.row.role === "default" || isRecommended(report, rowOfRole(report, "default"));
  return [
    el("p", { class: "headline" }, "Use ", el("strong", {}, words), isDefault ? ": these are the defaults." : "."),
    recommended.objective ? el("p", { class: "intro" }, "Asked for: " + recommended.objective) : null,
  ];
}

function boundsBanner(recommended) {
  if (!recommended.has_bounds) return null;
  if (recommended.bounds_met) return el("p", { class: "banner good" }, "All bounds that were given are met.");
  const missed = recommended.bounds_missed;
  return el("div", { class: "banner bad" },
    el("p", {}, "Not every bound can be met here. This is the best that is possible:"),
    el("ul", {}, missed.map((text) => el("li", {}, text))));
}

/** The figures that decide, each against the defaults and against the best of the other tools. */
function tiles(report, recommended) {
  const row = recommended.row;
  const bytes = report.facts.source.source_bytes;
  const others = [["the defaults", rowOfRole(report, "default")], ["the best other tool", bestOtherTool(report)]]
    .filter(([, other]) => other && !sameRow(other, row));
  const tile = (name, value, below, key) => el("div", { class: "tile" },
    el("div", { class: "tile-name" }, name), el("div", { class: "tile-value" }, value), el("div", { class: "tile-below" }, below),
    others.filter(([, other]) => isNumber(other[key]) && other[key] > 0).map(([label, other]) =>
      el("div", { class: "tile-against" }, againstText(row[key], other[key]) + " " + label + " (" + tileValue(key, other[key]) + ")")));
  return el("div", { class: "tiles" },
    tile("Backup", timeText(row.backup_s), rateText(bytes / row.backup_s), "backup_s"),
    isNumber(row.restore_s) ? tile("Restore", timeText(row.restore_s), rateText(bytes / row.restore_s), "restore_s") : null,
    tile("Stored", bytesText(row.stored_bytes), "of " + bytesText(bytes) + ", ratio " + digits(row.ratio), "stored_bytes"),
    tile("CPU of a backup", timeText(row.backup_cpu_s), "tool and server together", "backup_cpu_s"),
    tile("Memory", bytesText(row.rss_bytes_max), "largest, of the backup", "rss_bytes_max"));
}

function tileValue(key, value) {
  return key.endsWith("_s") ? timeText(value) : bytesText(value);
}

function reasons(recommended) {
  const item = (name, content) => content ? [el("h3", {}, name), content] : [];
  return el("div", {},
    item("Why this one", recommended.why.length ? el("ul", {}, recommended.why.map((text) => el("li", {}, text))) : null),
    item("What limits it now", recommended.limit ? el("p", {}, recommended.limit) : null),
    item("How sure", recommended.sureness ? el("p", {}, recommended.sureness) : null));
}

function settingsList(recommended) {
  const settings = recommended.settings;
  if (!settings) return el("div", {}, el("h3", {}, "Settings"), el("p", {}, recommended.row.setting));
  return el("div", {}, el("h3", {}, "Settings"), pairs([
    ["Compression", settings.compression],
    ["Readers", String(settings.readers)],
    ["Encoders", String(settings.encoders)],
    ["Stripes", String(settings.stripes)],
    ["Transfer buffers", settings.buffer_count + " of " + settingSize(settings.transfer_size_bytes)],
    ["Restore: stripe readers", String(settings.stripe_readers)],
    ["Restore: decoders", String(settings.decoders)],
    ["Restore: file writers", String(settings.file_writers)],
  ]));
}

function nextSteps(recommended) {
  if (!recommended.steps.length) return null;
  return [el("h3", {}, "What the next step would cost"), sortableTable({
    id: "steps", caption: "One wish more, and what it gains and costs", rows: recommended.steps,
    columns: [
      { name: "Wish", cell: (step) => step.wish },
      { name: "Gains and costs", cell: (step) => step.text },
      { name: "Settings", cell: (step) => el("code", {}, step.setting) },
    ],
  })];
}

function commandBlocks(recommended) {
  const names = recommended.commands.length === 2 ? ["Back up", "Restore"] : [];
  const commands = recommended.commands.map((command, index) => copyable(names[index] || "Command " + (index + 1), command));
  const config = recommended.config ? [copyable("pagehaul.toml", recommended.config.trimEnd())] : [];
  if (!commands.length && !config.length) return null;
  return [el("h3", {}, "To use it"), el("div", { class: "blocks" }, config, commands.length ? el("div", {}, commands) : null)];
}

function notesPointer(report) {
  if (!report.notes.length) return null;
  return el("p", { class: "intro" }, el("a", { href: "#notes" }, countText(report.notes.length, "note", "notes") + " on this run"), " at the end of this page.");
}

// Which row is which.

function isOtherTool(row) {
  return !["pagehaul", "sql server"].includes(row.contestant.toLowerCase());
}

function sameRow(a, b) {
  return Boolean(a && b) && a.contestant === b.contestant && a.setting === b.setting;
}

function isRecommended(report, row) {
  return Boolean(report.recommendation) && sameRow(row, report.recommendation.row);
}

function rowOfRole(report, role) {
  return report.rows.find((row) => row.role === role && !row.failed);
}

/** The other tool's row with the smallest sum of backup and restore time that restores at all. */
function bestOtherTool(report) {
  const rows = report.rows.filter((row) => isOtherTool(row) && !row.failed && isNumber(row.restore_s));
  return d3.least(rows, (row) => row.backup_s + row.restore_s);
}
