function start() {
  document.title = $("title").textContent = net.title;
  $("about").textContent = net.about;
  const wrong = $("wrong");
  for (const line of [...net.errors, ...net.unknown]) wrong.append(make("li", text(line)));
  wrong.hidden = !wrong.childNodes.length;
  const words = $("words"), takes = net.takes;
  for (const line of takes.lines) words.append(make("div", text(line)));
  if (takes.smallest.length) words.append(make("div", "smallest sizes: " + takes.smallest.map(([name, sizes]) => text(name) + " [" + sizes.join(", ") + "]").join("; "), "soft"));
  for (const [title, lines] of [["conditions on sizes that are known only in the run", takes.later], ["the conditions, op by op", takes.guards]]) {
    if (!lines.length) continue;
    const fold = make("details");
    fold.append(make("summary", title + " (" + lines.length.toLocaleString("en") + ")"));
    fold.addEventListener("toggle", () => { if (fold.childNodes.length === 1) for (const line of lines) fold.append(make("div", text(line))); });
    words.append(fold);
  }
  $("summary").textContent = net.summary;
  showNothing();
  startMemory();
  showDrawing(0);
  setBatch(net.batch.length ? stop_ : 0);
  if (computing.length) pickHeaviest();
}
/** Select the heaviest op, while the drawing stays that of the whole network. */
function pickHeaviest() {
  pickOp(heaviest());
  let seen = pickedLayer;
  while (seen >= 0 && net.layers[seen][LAYER.drawn] !== 0) seen = net.layers[seen][LAYER.above];
  showDrawing(0);
  pickInDrawing(seen, true);
}
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("input:not([type=range]):not([type=checkbox]), select")) return;
  const go = {
    "/": () => { $("search").focus(); $("search").select(); }, "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": all, u: outOfGroup,
    "?": () => $("help").showModal(), "[": () => setBatch(stop_ - 1), "]": () => setBatch(stop_ + 1),
    Escape: () => { pickedOp = pickedLayer = -1; pickInDrawing(-1); showNothing(); paintList(); paintMemory(); },
  }[event.key];
  if (go) { event.preventDefault(); go(); }
});
$("keys").addEventListener("click", () => $("help").showModal());
window.addEventListener("resize", () => { paintList(); paintMemory(); fit(); });
for (const event of ["beforeprint", "afterprint"]) window.addEventListener(event, () => { paintMemory(); all(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintMemory);
start();
