const chart = $("chart"), LEFT = 76, RIGHT = 10, BELOW = 22;
let stacked = null, total = null, keptBytes = 0, cursor = -1;
/** The bytes of each class at each op, for the batch that is chosen. */
function count_() {
  const memory = net.memory, steps = memory.order.length, kinds = memory.classes.length;
  stacked = memory.classes.map(() => new Float64Array(steps + 1));
  for (const [first, last, kind, , size] of memory.buffers) {
    const now = sizeNow(size) || 0;
    stacked[kind][Math.min(first, steps)] += now;
    stacked[kind][Math.min(last + 1, steps)] -= now;
  }
  total = new Float64Array(steps);
  for (let kind = 0; kind < kinds; kind++) {
    let sum = 0;
    for (let at = 0; at < steps; at++) {
      sum += stacked[kind][at];
      stacked[kind][at] = sum;
      total[at] += sum;
    }
  }
  keptBytes = memory.held.reduce((sum, [, , size]) => sum + (sizeNow(size) || 0), 0);
}
const heldAt = at => (total ? total[at] : 0) + keptBytes;
const peakAt = () => total.reduce((best, v, at) => v > total[best] ? at : best, 0);
const opWords = at => { const op = net.memory.order[at]; return op < 0 ? "op " + at : "op " + op + ", " + text(net.ops[op][OP.type]); };
function paintMemory() {
  if (!total) return;
  const canvas = chart.querySelector("canvas"), ratio = window.devicePixelRatio || 1, W = chart.clientWidth, H = chart.clientHeight;
  canvas.width = Math.round(W * ratio);
  canvas.height = Math.round(H * ratio);
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const base = $("kept").checked ? keptBytes : 0, steps = total.length, wide = W - LEFT - RIGHT, high = H - BELOW - 8;
  const top_ = Math.max(base + total.reduce((a, b) => Math.max(a, b), 0), 1);
  const y = size => 8 + (1 - size / top_) * high, x = at => LEFT + at / Math.max(steps, 1) * wide;
  const held = net.memory.classes.map(() => 0);
  for (const [kind, , size] of net.memory.held) held[kind] += sizeNow(size) || 0;
  const columns = Math.min(steps, Math.ceil(wide));
  for (let column = 0; column < columns; column++) {
    const begin = Math.floor(column * steps / columns), end = Math.max(begin + 1, Math.floor((column + 1) * steps / columns));
    const left = Math.round(x(begin)), right = Math.max(Math.round(x(end)), left + 1);  // whole pixels: no seams
    let worst = begin;
    for (let at = begin; at < end; at++) if (total[at] > total[worst]) worst = at;
    let below = 0;
    net.memory.classes.forEach(([, paint], kind) => {
      const size = (base ? held[kind] : 0) + stacked[kind][worst];
      if (size <= 0) return;
      pen.fillStyle = paint;
      pen.fillRect(left, y(below + size), right - left, y(below) - y(below + size));
      below += size;
    });
  }
  pen.fillStyle = pen.strokeStyle = colour("--soft");
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) pen.fillText(bytes(top_ * part), LEFT - 8, y(top_ * part));
  pen.fillRect(LEFT, y(0), wide, 1);
  pen.textAlign = "center";
  pen.fillText("the ops, as they run", LEFT + wide / 2, H - 8);
  const mark = (at, name) => { pen.fillStyle = colour(name); pen.fillRect(x(at + 0.5) - 0.75, 4, 1.5, high + 4); };
  if (steps) mark(peakAt(), "--mark");
  const own = memoryAt.get(pickedOp);
  if (own !== undefined) mark(own, "--link");
  if (cursor >= 0) mark(cursor, "--soft");
}
function alive(at) {
  return net.memory.buffers.filter(([first, last]) => first <= at && at <= last).map(b => [sizeNow(b[4]) || 0, text(b[3]), b[2]]).sort((a, b) => b[0] - a[0]);
}
function tellMemory(at, left, top_) {
  cursor = at;
  paintMemory();
  const tip = $("tip");
  if (at < 0) { tip.style.display = "none"; return; }
  const found = alive(at);
  tip.replaceChildren(make("div", opWords(at)), make("div", exact(heldAt(at)) + " held" + forBatch()),
    ...found.slice(0, 6).map(([size, name, kind]) => make("div", bytes(size) + "  " + name + ", " + net.memory.classes[kind][0])));
  if (found.length > 6) tip.append(make("div", "and " + (found.length - 6) + " smaller ones"));
  tip.style.display = "block";
  tip.style.left = Math.max(4, Math.min(left + 16, window.innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (top_ + 18 + tip.offsetHeight > window.innerHeight ? Math.max(4, top_ - tip.offsetHeight - 12) : top_ + 18) + "px";
  chart.setAttribute("aria-label", opWords(at) + ": " + exact(heldAt(at)));
}
function stepAt(event) {
  const at = Math.floor((event.clientX - chart.getBoundingClientRect().left - LEFT) / (chart.clientWidth - LEFT - RIGHT) * total.length);
  return at >= 0 && at < total.length ? at : -1;
}
function startMemory() {
  const memory = net.memory, batch = $("batch");
  batch.max = net.batches.length - 1;
  batch.value = stop_;
  if (!net.batch.length) batch.disabled = true;
  batch.addEventListener("input", () => setBatch(+batch.value));
  if (!memory.order) {
    $("peak").textContent = text(memory.why);
    for (const id of ["chart", "legend", "peakformula"]) $(id).hidden = true;
    return;
  }
  for (const [name, paint] of memory.classes) {
    const entry = make("span"), patch = make("i");
    patch.style.background = paint;
    entry.append(patch, name);
    $("legend").append(entry);
  }
  $("formula").textContent = "peak = " + memory.formula + text(memory.without);
  count_();
  $("kept").checked = keptBytes < 3 * total.reduce((a, b) => Math.max(a, b), 0);  // else nothing is seen of the rest
  $("kept").addEventListener("change", paintMemory);
  chart.addEventListener("pointermove", event => tellMemory(stepAt(event), event.clientX, event.clientY));
  chart.addEventListener("pointerleave", () => tellMemory(-1));
  chart.addEventListener("blur", () => tellMemory(-1));
  chart.addEventListener("click", event => { const at = stepAt(event); if (at >= 0 && memory.order[at] >= 0) pickOp(memory.order[at]); });
  chart.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Enter" && cursor >= 0 && memory.order[cursor] >= 0) pickOp(memory.order[cursor]);
    if (by === undefined || !total.length) return;
    event.preventDefault();
    const at = Math.min(Math.max((cursor < 0 ? peakAt() : cursor) + by, 0), total.length - 1), around = chart.getBoundingClientRect();
    tellMemory(at, around.left + LEFT + at / total.length * (chart.clientWidth - LEFT - RIGHT), around.top + 40);
  });
}
function setBatch(at) {
  stop_ = Math.min(Math.max(at, 0), net.batches.length - 1);
  $("batch").value = stop_;
  const others = Object.entries(net.symbols).map(([name, size]) => name + " = " + size.toLocaleString("en"));
  $("size").textContent = net.batch.length ? net.batches[stop_].toLocaleString("en") + (others.length ? ", " + others.join(", ") : "") : "no size is open";
  if (net.memory.order) {
    count_();
    const at_ = total.length ? peakAt() : -1, peak = keptBytes + (at_ < 0 ? 0 : total[at_]);
    $("peak").textContent = "peak " + exact(peak) + (at_ < 0 ? "" : " at " + opWords(at_)) + "; " + bytes(keptBytes) + " of it kept from run to run";
    chart.setAttribute("aria-label", "memory over the ops, " + $("peak").textContent);
    paintMemory();
  }
  search(true);
  if (pickedOp >= 0) showOp(pickedOp); else if (pickedLayer >= 0) showLayer(pickedLayer);
}
