const net = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const text = n => n < 0 ? "" : net.texts[n];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], COUNTS = ["", "K", "M", "G", "T", "P", "E"];
function scaled(n, base, units) {
  let unit = 0;
  while (Math.abs(n) >= base && unit + 1 < units.length) { n /= base; unit++; }
  return (unit === 0 ? String(Math.round(n)) : n < 100 ? n.toFixed(1) : n.toFixed(0)) + (units === BYTES ? " " : "") + units[unit];
}
const bytes = n => n === null ? "unknown" : scaled(n, 1024, BYTES);
const count = n => n === null ? "not counted" : scaled(n, 1000, COUNTS);
const exact = n => n === null ? "unknown" : n < 1024 ? bytes(n) : bytes(n) + " (" + n.toLocaleString("en") + ")";
let stop_ = Math.max(0, net.batches.indexOf(32));  // which of the batches

/** A size at the batch that is chosen: a number, a line over the batch, or a value for each batch. */
function sizeNow(of) {
  if (of === null || typeof of === "number") return of;
  return Array.isArray(of) ? of[0] + of[1] * net.batches[stop_] : of.at[stop_];
}
function make(tag, words, kind) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  return made;
}
function link(words, go) {
  const made = make("button", words, "link");
  made.type = "button";
  made.addEventListener("click", go);
  return made;
}
const OP = { type: 0, role: 1, block: 2, layer: 3, member: 4, line: 5, settings: 6, reads: 7, makes: 8, work: 9, runs: 10, main: 11, form: 12 };
const VALUE = { name: 0, spec: 1, what: 2, op: 3, bytes: 4, line: 5 };
const LAYER = { name: 0, types: 1, times: 2, above: 3, drawn: 4, opens: 5, parameters: 6, held: 7, many: 8 };
const opsIn = net.layers.map(() => []), under = net.layers.map(() => []);
net.ops.forEach((op, at) => { if (op[OP.layer] >= 0) opsIn[op[OP.layer]].push(at); });
net.layers.forEach((layer, at) => { if (layer[LAYER.above] >= 0) under[layer[LAYER.above]].push(at); });

/** The ops of a layer, those of the layers in it included. */
function allOps(layer) {
  const out = [...opsIn[layer]];
  for (const inner of under[layer]) out.push(...allOps(inner));
  return out.sort((a, b) => a - b);
}
const firstResult = op => net.ops[op][OP.main];
const bytesMade = op => net.ops[op][OP.makes].reduce((sum, [, names]) => sum + names.reduce((s, v) => s + (sizeNow(net.values[v][VALUE.bytes]) || 0), 0), 0);
const workOf = op => sizeNow(net.ops[op][OP.work]) || 0;
const layerWords = at => text(net.layers[at][LAYER.name]) + (net.layers[at][LAYER.times] > 1 ? " " + text(net.layers[at][LAYER.many]) : "");
let pickedOp = -1, pickedLayer = -1;
