"use strict";
// Elements, units and words. Text goes into the page as text nodes only: names, paths and errors are never markup.

const NONE = "–";

/** An element; `attributes` go through setAttribute, children are elements or text. */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three digits that count: 0.42, 3.41, 41.2, 412. */
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** Bytes in decimal units. */
function bytesText(value) {
  if (!isNumber(value)) return NONE;
  const units = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const [size, name] = units.find(([unit]) => Math.abs(value) >= unit * 0.9995) || [1, "bytes"];
  return (size === 1 ? String(Math.round(value)) : digits(value / size)) + " " + name;
}

/** Sizes that are set, not measured, are powers of two and are written as they are typed. */
function settingSize(value) {
  if (!isNumber(value)) return NONE;
  if (value >= 1048576 && value % 1048576 === 0) return value / 1048576 + " MiB";
  return value % 1024 === 0 ? value / 1024 + " KiB" : value + " bytes";
}

function rateText(value) {
  if (!isNumber(value) || value <= 0) return NONE;
  return (value >= 9.995e9 ? digits(value / 1e9) + " GB" : digits(value / 1e6) + " MB") + "/s";
}

function timeText(value) {
  if (!isNumber(value)) return NONE;
  if (value < 99.95) return (value > 0 && value < 0.01 ? (value * 1000).toFixed(2) + " ms" : digits(value) + " s");
  const seconds = Math.round(value);
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + two(seconds % 60) + " s";
  const minutes = Math.round(seconds / 60);
  return Math.floor(minutes / 60) + " h " + two(minutes % 60) + " min";
}

/** A share as per cent, without a sign. */
function percentText(share) {
  if (!isNumber(share)) return NONE;
  const percent = share * 100;
  return (Math.abs(percent) < 9.95 ? percent.toFixed(1) : percent.toFixed(0)) + " %";
}

/** `value` against `other`, such as "21 % less than". */
function againstText(value, other) {
  const change = value / other - 1;
  if (Math.abs(change) < 0.005) return "the same as";
  return change > 1 ? digits(value / other) + " times" : percentText(Math.abs(change)) + (change < 0 ? " less than" : " more than");
}

function signedPercent(share) {
  if (!isNumber(share)) return NONE;
  return (share >= 0 ? "+" : "−") + percentText(Math.abs(share));
}

function countText(count, one, many) {
  return count + " " + (count === 1 ? one : many);
}

function median(values) {
  return d3.median(values.filter(isNumber));
}

function whenText(text) {
  const when = text ? new Date(text) : null;
  if (!when || Number.isNaN(when.getTime())) return text || NONE;
  return when.toISOString().replace("T", " ").slice(0, 16) + " UTC";
}

/** Settings as the command line says them, shorter: one line. */
function settingsText(settings) {
  return settings.compression + " r" + settings.readers + " e" + settings.encoders + " s" + settings.stripes +
    " b" + settings.buffer_count + " " + settingSize(settings.transfer_size_bytes).replace(" ", "") +
    " / r" + settings.stripe_readers + " d" + settings.decoders + " w" + settings.file_writers;
}

/** A section of the page with its heading; `words` say what it shows. */
function section(id, title, words, ...children) {
  const heading = el("h2", { id: id + "-title" }, title);
  const intro = words ? el("p", { class: "intro" }, words) : null;
  return el("section", { id, "aria-labelledby": id + "-title" }, heading, intro, ...children);
}

/** Names and values, side by side. */
function pairs(list) {
  const shown = list.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "pairs" }, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Text to copy, with its button. */
function copyable(label, text) {
  // Lines break between words, not at the dashes of an option.
  const code = el("code", {}, text.split(/([ \n]+)/).map((word, index) => index % 2 === 0 && word ? el("span", {}, word) : word));
  const block = el("pre", { tabindex: "0", "aria-label": label }, code);
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copyText(text, code);
    button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
  return el("div", { class: "copyable" }, el("div", { class: "copy-head" }, el("span", {}, label), button), block);
}

async function copyText(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Files opened from a disk may not be let near the clipboard; then the text is selected for the person.
    getSelection().selectAllChildren(element);
    return false;
  }
}
