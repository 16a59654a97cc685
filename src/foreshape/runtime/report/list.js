const list = $("list"), rows = $("rows"), ROW = 26;
/** The ops of the network itself: feed and fetch are its inputs and outputs in the file. */
const computing = net.ops.map((_, at) => at).filter(at => !["feed", "fetch"].includes(text(net.ops[at][OP.type])));
let listed = computing, haystack = null, most = 1;
function searchWords() {
  const within = net.layers.map((layer, at) => layerNames(at));
  return net.ops.map((op, at) => {
    const names = [...op[OP.makes], ...op[OP.reads]].flatMap(([, of]) => of.map(v => text(net.values[v][VALUE.name])));
    return [at, text(op[OP.type]), text(op[OP.role]), text(op[OP.line]), ...names, op[OP.layer] < 0 ? "" : within[op[OP.layer]]].join(" ").toLowerCase();
  });
}
function layerNames(layer) {
  const names = [];
  for (; layer >= 0; layer = net.layers[layer][LAYER.above]) names.push(text(net.layers[layer][LAYER.name]));
  return names.join(" ");
}
const measure = () => $("order").value === "bytes" ? bytesMade : workOf;
function search(stay) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !haystack) haystack = searchWords();
  listed = computing.filter(at => words.every(w => haystack[at].includes(w)));
  const much = measure(), values = net.ops.map((_, at) => much(at));
  most = values.reduce((a, b) => Math.max(a, b), 1);
  if ($("order").value !== "run") listed.sort((a, b) => values[b] - values[a] || a - b);
  $("found").textContent = listed.length.toLocaleString("en") + (words.length ? " of " + computing.length.toLocaleString("en") : "") + (listed.length === 1 ? " op" : " ops");
  rows.style.height = listed.length * ROW + "px";
  if (stay !== true) list.scrollTop = 0;
  paintList();
}
/** Only the rows that are seen are in the page. */
function paintList() {
  const much = measure(), show = $("order").value === "bytes" ? bytes : count;
  const begin = Math.max(0, Math.floor(list.scrollTop / ROW) - 4), end = Math.min(listed.length, begin + Math.ceil(list.clientHeight / ROW) + 8);
  const made = [];
  for (let place = begin; place < end; place++) {
    const at = listed[place], op = net.ops[at], row = make("div", undefined, "row"), result = firstResult(at), value = much(at);
    row.style.top = place * ROW + "px";
    row.id = "op" + at;
    row.dataset.op = at;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", at === pickedOp);
    row.setAttribute("aria-posinset", place + 1);
    row.setAttribute("aria-setsize", listed.length);
    const bar = make("i");
    bar.style.width = 100 * value / most + "%";
    row.title = result >= 0 ? text(net.values[result][VALUE.name]) : "";
    row.append(bar, make("span", String(at), "at"), make("span", text(op[OP.type])), make("span", result >= 0 ? text(net.values[result][VALUE.name]) : "", "of"),
      make("span", value ? show(value) : "", "much"));
    made.push(row);
  }
  rows.replaceChildren(...made);
  list.setAttribute("aria-activedescendant", pickedOp >= 0 ? "op" + pickedOp : "");
}
/** The op with the most work, or where no work is counted, with the most bytes; -1 without ops. */
function heaviest() {
  const by = computing.some(workOf) ? workOf : bytesMade;
  return computing.reduce((best, at) => best < 0 || by(at) > by(best) ? at : best, -1);
}
function reveal(op) {
  const place = listed.indexOf(op);
  if (place >= 0) {
    const y = place * ROW;
    if (y < list.scrollTop || y + ROW > list.scrollTop + list.clientHeight) list.scrollTop = y - list.clientHeight / 2;
  }
  paintList();
}
list.addEventListener("scroll", paintList);
list.addEventListener("click", event => {
  const row = event.target.closest(".row");
  if (row) pickOp(+row.dataset.op);
});
list.addEventListener("keydown", event => {
  const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1), now = listed.indexOf(pickedOp);
  const next = { ArrowDown: now + 1, ArrowUp: now < 0 ? 0 : now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: listed.length - 1 }[event.key];
  if (next === undefined || !listed.length) return;
  event.preventDefault();
  pickOp(listed[Math.min(Math.max(next, 0), listed.length - 1)]);
});
$("search").addEventListener("input", search);
$("search").addEventListener("keydown", event => {
  if (event.key === "Escape") { $("search").value = ""; search(); list.focus(); }
  if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); list.focus(); if (listed.length) pickOp(listed[0]); }
});
$("order").addEventListener("change", search);
