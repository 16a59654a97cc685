const MOST_STEPS = 80;
function facts(pairs) {
  const table = make("table"), body = make("tbody");
  for (const [name, what] of pairs) {
    if (what === "" || what === undefined || what === null) continue;
    const row = make("tr"), cell = make("td");
    cell.append(what);
    row.append(make("td", name), cell);
    body.append(row);
  }
  table.append(body);
  return table;
}
function valueLine(slot, number) {
  const value = net.values[number], line = make("div");
  const maker = value[VALUE.op];
  line.append(slot + " ", maker >= 0 ? link(text(value[VALUE.name]), () => pickOp(maker)) : make("b", text(value[VALUE.name])), make("div", text(value[VALUE.spec]) +
    (maker < 0 && text(value[VALUE.what]) ? ", " + text(value[VALUE.what]) : ""), "spec"));
  return line;
}
function values(title, slots) {
  const part = make("div", undefined, "values");
  for (const [slot, names] of slots) for (const number of names) part.append(valueLine(text(slot), number));
  return part.childNodes.length ? [make("h3", title), part] : [];
}
const PARTS = ["", ".count", ".value"];
const unique = slots => [...new Set(slots.flatMap(([, of]) => of))];
/** The sizes of a value as texts; none of values that are ragged, whose rows are told otherwise. */
function sizesOf(number) {
  const all = /^[^[|]*\[([^|]*)\]/.exec(text(net.values[number][VALUE.spec])), out = [""];
  if (!all || !all[1]) return [];
  let depth = 0;
  for (const c of all[1]) {
    if (c === "," && !depth) { out.push(""); continue; }
    depth += c === "(" ? 1 : c === ")" ? -1 : 0;
    out[out.length - 1] += c;
  }
  return out.map(one => one.trim());
}
/** How an op makes each size of a value, one step back: what, by what, and the sizes that it is made of (value, size). */
function stepsOf(number) {
  const value = net.values[number], op = net.ops[value[VALUE.op]];
  if (!op) return [];
  const form = op[OP.form], reads = unique(op[OP.reads]), name = text(value[VALUE.name]);
  if (form === null) return sizesOf(number).map((size, at) => alike(op, reads, name, size, at));
  const made = form < 0 ? [] : net.forms[form][op[OP.makes].flatMap(([, of]) => of).indexOf(number)] || [];
  const place = ([input, part, at]) => text(net.values[reads[input]][VALUE.name]) + PARTS[part] + "[" + at + "]";
  return made.map(([at, pieces, places, sources, by]) => ({
    at, by: text(by), of: sources.filter(([, part]) => part === 0).map(([input, , axis]) => [reads[input], axis]),
    words: name + "[" + at + "] = " + pieces.map((piece, k) => text(piece) + (k < places.length ? place(sources[places[k]]) : "")).join(""),
  }));
}
/** What the sizes alone tell, where the rule was not asked: an input of the same size. */
function alike(op, reads, name, size, at) {
  for (const input of size === "1" ? [] : reads) {
    const axis = sizesOf(input)[at] === size ? at : sizesOf(input).indexOf(size);
    if (axis >= 0) return { at, by: text(op[OP.type]) + ", which has an input of this size", of: [[input, axis]], words: name + "[" + at + "] = " + text(net.values[input][VALUE.name]) + "[" + axis + "]" };
  }
  return { at, by: text(op[OP.type]) + ", by its rule" + (text(op[OP.settings]) ? " and " + text(op[OP.settings]) : ""), of: [], words: name + "[" + at + "] = " + size };
}
/** Every step from a size back to where it begins. */
function chain(number, dim) {
  const steps = [], seen = new Set(), waiting = [[number, dim]];
  while (waiting.length && steps.length < MOST_STEPS) {
    const [of, at] = waiting.shift();
    if (seen.has(of + "." + at)) continue;
    seen.add(of + "." + at);
    const value = net.values[of], step = stepsOf(of).find(one => one.at === at);
    if (!step) {
      steps.push(text(value[VALUE.name]) + "[" + at + "], " + (text(value[VALUE.what]) || "given"));
      continue;
    }
    steps.push(step.words + "    " + step.by + (text(value[VALUE.line]) ? "    " + text(value[VALUE.line]) : ""));
    waiting.push(...step.of);
  }
  if (waiting.length) steps.push("and more steps, which are not told");
  return steps;
}
function explained(number) {
  const guessed = net.values[number][VALUE.op] >= 0 && net.ops[net.values[number][VALUE.op]][OP.form] === null;
  const folds = stepsOf(number).map(step => {
    const fold = make("details");
    fold.append(make("summary", step.words));
    fold.addEventListener("toggle", () => {
      if (!fold.open || fold.querySelector("ol")) return;
      const steps = make("ol");
      for (const line of chain(number, step.at)) steps.append(make("li", line));
      fold.append(steps);
    });
    return fold;
  });
  if (guessed && net.errors.length) folds.push(make("p", "The network has errors, so that no rule was asked: the sizes alone were compared.", "soft"));
  else if (guessed) folds.push(make("p", "More than " + net.forms.length.toLocaleString("en") + " ops of this network are different from each other. The rules of those were asked; of this one the sizes alone were compared. program.explain(" +
    JSON.stringify(text(net.values[number][VALUE.name])) + ") asks its rule.", "soft"));
  return folds;
}
const memoryAt = new Map();
if (net.memory.order) net.memory.order.forEach((op, at) => memoryAt.set(op, at));
function showOp(at) {
  const op = net.ops[at], detail = $("detail"), result = firstResult(at), place = memoryAt.get(at);
  const where = op[OP.layer] < 0 ? "" : link(pathOf(op[OP.layer]) + (op[OP.member] ? ", number " + (op[OP.member] + 1) + " of those alike" : ""), () => pickLayer(op[OP.layer]));
  detail.replaceChildren(make("h2", text(op[OP.type])), facts([
    ["op", at + (op[OP.block] ? " of all, in block " + op[OP.block] : "") + (text(op[OP.role]) ? ", " + text(op[OP.role]) : "")],
    ["layer", where], ["line", text(op[OP.line])], ["settings", text(op[OP.settings])],
    ["runs", op[OP.runs].map(b => "block " + b).join(", ")],
    ["work", op[OP.work] === null ? "" : count(workOf(at)) + " multiply-adds" + forBatch()],
    ["makes", exact(bytesMade(at)) + forBatch()],
    ["memory", place === undefined ? "" : exact(heldAt(place)) + " needed while it runs" + forBatch()],
  ]), ...values("reads", op[OP.reads]), ...values("makes", op[OP.makes]));
  if (result >= 0) detail.append(make("h3", "where its shape comes from"), ...explained(result));
  detail.scrollTop = 0;
}
const forBatch = () => net.batch.length ? ", batch " + net.batches[stop_].toLocaleString("en") : "";
function pathOf(layer) {
  const names = [];
  for (let at = layer; at >= 0; at = net.layers[at][LAYER.above]) names.unshift(layerWords(at));
  return names.join(" / ");
}
function showLayer(at) {
  const layer = net.layers[at], ops = allOps(at), detail = $("detail");
  const open = layer[LAYER.opens] >= 0 ? link("open its drawing", () => showDrawing(layer[LAYER.opens])) : "";
  const sum = of => ops.reduce((total, op) => total + of(op), 0);
  detail.replaceChildren(make("h2", layerWords(at)), facts([
    ["in", layer[LAYER.above] < 0 ? "" : link(pathOf(layer[LAYER.above]), () => pickLayer(layer[LAYER.above]))],
    ["operators", text(layer[LAYER.types])], ["drawing", open],
    ["parameters", layer[LAYER.parameters] ? layer[LAYER.parameters].toLocaleString("en") + " numbers, " + exact(layer[LAYER.held]) : "none"],
    ["work", count(sum(workOf)) + " multiply-adds" + forBatch()], ["makes", exact(sum(bytesMade)) + forBatch()],
  ]), make("h3", ops.length.toLocaleString("en") + (ops.length === 1 ? " op" : " ops")));
  const part = make("div", undefined, "values");
  for (const op of ops.slice(0, 60)) {
    const line = make("div"), result = firstResult(op);
    line.append(link(op + "  " + text(net.ops[op][OP.type]), () => pickOp(op)), make("div", result >= 0 ? text(net.values[result][VALUE.name]) + ": " + text(net.values[result][VALUE.spec]) : "", "spec"));
    part.append(line);
  }
  if (ops.length > 60) part.append(make("div", "and " + (ops.length - 60).toLocaleString("en") + " more", "soft"));
  detail.append(part);
  detail.scrollTop = 0;
}
function showNothing() {
  $("detail").replaceChildren(make("h2", "Nothing is selected"), make("p", "Click an op in the list, or a box in the drawing: its shapes and where they come from, its line, its memory and work.", "soft"));
}
function pickOp(at) {
  pickedOp = at;
  pickedLayer = net.ops[at][OP.layer];
  let seen = pickedLayer;
  while (seen >= 0 && net.layers[seen][LAYER.drawn] < 0) seen = net.layers[seen][LAYER.above];
  pickInDrawing(seen, true);
  showOp(at);
  reveal(at);
  paintMemory();
}
function pickLayer(at) {
  const ops = allOps(at);
  if (ops.length === 1 && net.layers[at][LAYER.times] === 1) {
    pickOp(ops[0]);
    return;
  }
  pickedLayer = at;
  pickedOp = -1;
  pickInDrawing(at, false);
  showLayer(at);
  paintList();
  paintMemory();
}
