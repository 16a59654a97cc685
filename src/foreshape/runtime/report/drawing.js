const SVG = "http://www.w3.org/2000/svg";
const frame = $("drawing");
let shown = -1, view = { x: 0, y: 0, scale: 1 }, canvas = null, boxOf = new Map();
function shape(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}
function arrows(into, lines) {
  for (const [path, far] of lines) into.append(shape("path", { class: far ? "arrow far" : "arrow", d: path }));
  for (const [, , x, y] of lines) if (x !== undefined) into.append(shape("path", { class: "head", d: `M${x} ${y}l-3.5 -6h7z` }));
}
function drawBox([layer, x, y, w, h, family, times, round, lines, inside]) {
  const group = shape("g", { transform: `translate(${x} ${y})`, class: inside ? "inner" : "" });
  const corner = round ? 11 : 4;
  if (times > 1) {
    group.append(shape("rect", { class: "end", x: 3.5, y: 3.5, width: w - 3, height: h, rx: corner }));
    w -= 3;
  }
  const middle = inside ? 9 : w / 2, top = inside ? 16 : 17;
  group.append(shape("rect", inside ? { class: "group", width: w, height: h, rx: 6 } : { class: round ? "end" : "box", width: w, height: h, rx: corner,
    style: round ? "" : `fill:var(--${family})` }));
  lines.forEach((line, at) => group.append(shape("text", { x: middle, y: top + 15 * at, class: at ? "soft" : "", "text-anchor": inside ? "start" : "middle" }, text(line))));
  if (inside && times > 1) group.append(shape("text", { x: w - 8, y: 16, class: "times", "text-anchor": "end" }, text(net.layers[layer][LAYER.many])));
  if (inside) {
    arrows(group, inside[1]);
    for (const box of inside[0]) group.append(drawBox(box));
  }
  if (layer >= 0) {
    group.dataset.layer = layer;
    group.append(shape("title", {}, layerWords(layer) + (net.layers[layer][LAYER.opens] >= 0 ? " (double click, or Enter: what is in it)" : "")));
    boxOf.set(layer, group);
  }
  return group;
}
function showDrawing(number) {
  if (number === shown) return;
  shown = number;
  boxOf = new Map();
  const drawing = net.drawings[number];
  const root = shape("svg", { class: "fs-graph" });
  canvas = shape("g", {});
  arrows(canvas, drawing.lines);
  for (const box of drawing.boxes) canvas.append(drawBox(box));
  root.append(canvas);
  frame.replaceChildren(root);
  showPath(drawing.of);
  fit();
}
function showPath(layer) {
  const parts = [];
  for (let at = layer; at >= 0; at = net.layers[at][LAYER.above]) parts.unshift(at);
  const path = $("path");
  path.replaceChildren(layer < 0 ? make("span", "the whole network") : link("the whole network", () => showDrawing(0)));
  for (const at of parts) {
    const own = net.layers[at][LAYER.opens];
    path.append(" / ", at !== layer && own >= 0 ? link(layerWords(at), () => showDrawing(own)) : make("span", layerWords(at)));
  }
}
function place() {
  canvas.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}
function fit() {
  const [w, h] = net.drawings[shown].size, W = frame.clientWidth, H = frame.clientHeight;
  const whole = Math.min((W - 16) / w, (H - 16) / h, 1.2);
  const scale = Math.max(whole, Math.min((W - 16) / w, 0.8));  // a tall one begins at its top, readable
  view = { scale, x: Math.max((W - w * scale) / 2, 8 - Math.max(0, (w * scale - W) / 2)), y: h * scale > H ? 8 : (H - h * scale) / 2 };
  place();
}
function all() {
  const [w, h] = net.drawings[shown].size, W = frame.clientWidth, H = frame.clientHeight;
  const scale = Math.min((W - 16) / w, (H - 16) / h, 1.2);
  view = { scale, x: (W - w * scale) / 2, y: (H - h * scale) / 2 };
  place();
}
function zoom(by, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
  const scale = Math.min(Math.max(view.scale * by, 0.02), 6), real = scale / view.scale;
  view = { scale, x: x - (x - view.x) * real, y: y - (y - view.y) * real };
  place();
}
/** Show a layer: in the drawing that it is a box of, or the group around it that is one. */
function pickInDrawing(layer, move) {
  frame.querySelectorAll(".picked").forEach(g => g.classList.remove("picked"));
  if (layer < 0) return;
  if (net.layers[layer][LAYER.drawn] >= 0) showDrawing(net.layers[layer][LAYER.drawn]);
  const group = boxOf.get(layer);
  if (!group) return;
  group.classList.add("picked");
  const at = group.getBoundingClientRect(), around = frame.getBoundingClientRect();
  const out = at.right > around.right || at.left < around.left || at.bottom > around.bottom || at.top < around.top;
  if (move && out) {
    if (view.scale < 0.45) zoom(0.8 / view.scale);
    const now = group.getBoundingClientRect();
    view.x += around.left + around.width / 2 - (now.left + now.right) / 2;
    view.y += around.top + Math.max(around.height / 2 - now.height / 2, 20) - now.top;
    place();
  }
}
function openGroup(layer) {
  if (layer >= 0 && net.layers[layer][LAYER.opens] >= 0) showDrawing(net.layers[layer][LAYER.opens]);
}
function outOfGroup() {
  const of = net.drawings[shown].of;
  if (of >= 0) {
    showDrawing(net.layers[of][LAYER.drawn]);
    pickInDrawing(of, true);
  }
}
let drag = null;
frame.addEventListener("pointerdown", event => {
  drag = { x: event.clientX, y: event.clientY, from: { ...view }, moved: false, on: event.target.closest("g[data-layer]") };
  frame.setPointerCapture(event.pointerId);
});
frame.addEventListener("pointermove", event => {
  if (!drag) return;
  const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
  if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
  drag.moved = true;
  frame.classList.add("moving");
  view = { ...view, x: drag.from.x + dx, y: drag.from.y + dy };
  place();
});
frame.addEventListener("pointerup", () => {
  if (drag && !drag.moved && drag.on) pickLayer(+drag.on.dataset.layer);
  drag = null;
  frame.classList.remove("moving");
});
frame.addEventListener("pointercancel", () => { drag = null; });
frame.addEventListener("dblclick", () => openGroup(pickedLayer));
frame.addEventListener("wheel", event => {
  event.preventDefault();
  const at = frame.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - at.left, event.clientY - at.top);
}, { passive: false });
frame.addEventListener("keydown", event => {
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
  if (moves) {
    view = { ...view, x: view.x + moves[0], y: view.y + moves[1] };
    place();
  } else if (event.key === "Enter") openGroup(pickedLayer);
  else return;
  event.preventDefault();
});
$("closer").addEventListener("click", () => zoom(1.3));
$("farther").addEventListener("click", () => zoom(1 / 1.3));
$("whole").addEventListener("click", all);
