// Sets the page up: the explorer, the dialog with counterexamples, the diagrams of the guarantees.

const payload = JSON.parse(document.getElementById("payload").textContent);
const explorer = new Explorer(document.getElementById("explorer"), payload);
const dialog = document.getElementById("counterexample");
const shown = { walk: null, trace: null };

function partOfDialog(name) { return dialog.querySelector(`[data-part="${name}"]`); }

async function showTrace(trace) {
  shown.trace = trace;
  shown.walk = new Walk(await loadGraph(trace.protocol), trace.path);
  partOfDialog("title").textContent = trace.heading;
  partOfDialog("sentence").textContent = trace.sentence;
  partOfDialog("stories").replaceChildren(...trace.stories.map((name) => {
    const link = html("a", { href: `#flaw-${name}` }, name);
    link.addEventListener("click", () => dialog.close());
    return html("li", {}, link);
  }));
  partOfDialog("known").hidden = !trace.stories.length;
  shown.walk.jump(0);
  drawShown();
  if (!dialog.open) dialog.showModal();
  if (location.hash !== `#show/${trace.id}`) history.pushState(null, "", `#show/${trace.id}`);
}

function drawShown() {
  const { walk } = shown;
  drawSequence(partOfDialog("trace"), walk, { jump: stepShown, sentences: payload.properties });
  drawStage(dialog, walk, payload);
  for (const [name, off] of [["first", walk.at === 0], ["back", walk.at === 0], ["on", walk.at === walk.length], ["last", walk.at === walk.length]]) {
    partOfDialog(name).setAttribute("aria-disabled", off);
  }
  partOfDialog("at").textContent = `step ${walk.at} of ${walk.length}`;
  const broken = walk.now.broken.length ? ` Violated: ${walk.now.broken.join(", ")}.` : "";
  partOfDialog("said").textContent = walk.at ? `Step ${walk.at}: ${walk.now.step.call}.${broken}` : "Initial state.";
}

function stepShown(to) {
  shown.walk.jump(to);
  drawShown();
  dialog.querySelector('[aria-current="step"]')?.scrollIntoView({ block: "nearest" });
}

for (const [name, to] of [["first", () => 0], ["back", () => shown.walk.at - 1], ["on", () => shown.walk.at + 1], ["last", () => shown.walk.length]]) {
  partOfDialog(name).addEventListener("click", () => stepShown(to()));
}
dialog.addEventListener("keydown", (event) => {
  const to = { ArrowRight: shown.walk.at + 1, ArrowLeft: shown.walk.at - 1, Home: 0, End: shown.walk.length }[event.key];
  if (to !== undefined && !event.altKey && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    stepShown(to);
  }
});
dialog.addEventListener("close", () => {
  if (location.hash.startsWith("#show/")) history.replaceState(null, "", location.href.split("#")[0]);
});
partOfDialog("close").addEventListener("click", () => dialog.close());
partOfDialog("explore").addEventListener("click", async () => {
  const { trace, walk } = shown;
  dialog.close();
  await explorer.open(trace.protocol, trace.path, walk.at || walk.length);
  goToExplorer();
});

function goToExplorer() {
  (innerWidth < 700 ? explorer.part("board").closest(".pane") : explorer.root).scrollIntoView(); // on a narrow screen, the diagram
  explorer.part("protocol").focus({ preventScroll: true });
}

for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => showTrace(payload.traces.find(({ id }) => id === button.dataset.show)));
}

const stills = new Map(); // static diagrams, each with its walk
const PAPER = 480; // the width of a static diagram on paper, where there are two per row

async function readStills() {
  for (const figure of document.querySelectorAll("[data-draw]")) {
    const trace = payload.traces.find(({ id }) => id === figure.dataset.draw);
    if (trace) stills.set(figure, new Walk(await loadGraph(trace.protocol), trace.path));
  }
  for (const figure of document.querySelectorAll("[data-walk]")) {
    const [protocol, ...words] = figure.dataset.walk.split("/");
    const walk = new Walk(await loadGraph(protocol));
    walk.follow(words);
    stills.set(figure, walk);
  }
}

function drawStills(room) {
  for (const [figure, walk] of stills) drawSequence(figure, walk, { sentences: payload.properties, room: room ?? figure.clientWidth });
}

// A wide diagram can be enlarged, and then moved by dragging or scrolling.
for (const figure of document.querySelectorAll("figure.wide")) {
  let zoom = 1;
  const set = (to) => {
    zoom = Math.max(1, Math.min(4, to));
    figure.style.setProperty("--zoom", zoom);
    figure.classList.toggle("zoomed", zoom > 1);
  };
  const button = (text, label, by) => {
    const made = html("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", () => set(by ? zoom * by : 1));
    return made;
  };
  const name = figure.getAttribute("aria-label");
  figure.before(html("p", { class: "zoom" }, button("−", `${name}: smaller`, 1 / 1.5), button("+", `${name}: larger`, 1.5), button("Fit", `${name}: fit`, 0)));
  figure.after(html("p", { class: "swipe", "aria-hidden": "true" }, "← swipe to see all of it →"));
  figure.addEventListener("pointermove", ({ buttons, movementX }) => { if (buttons === 1) figure.scrollLeft -= movementX; });
}

// A closed <details> has no width to draw in.
for (const folded of document.querySelectorAll("details:has([data-draw])")) {
  folded.addEventListener("toggle", () => folded.open && !matchMedia("print").matches && drawStills());
}

// Follows the address: to a walk in the explorer, a trace in the dialog, or a section.
async function arrive() {
  const asked = location.hash;
  if (dialog.open && !asked.startsWith("#show/")) dialog.close();
  if (asked.startsWith("#play/")) {
    await explorer.follow(asked);
    const { top, bottom } = explorer.root.getBoundingClientRect();
    if (bottom < 200 || top > innerHeight - 200) goToExplorer();
  } else if (asked.startsWith("#show/")) {
    const trace = payload.traces.find(({ id }) => id === decodeURIComponent(asked.slice("#show/".length)));
    if (trace) await showTrace(trace);
  } else if (asked) {
    const target = document.getElementById(decodeURIComponent(asked.slice(1)));
    const folded = target?.closest("details:not([open])");
    if (folded) {
      folded.open = true;
      target.scrollIntoView();
    }
  } else if (explorer.walk?.at) {
    explorer.following = true;
    await explorer.open(explorer.protocol);
    explorer.following = false;
  }
}

// Writes the steps of every flaw as text, for reading and printing.
async function tellFlaws() {
  for (const place of document.querySelectorAll("[data-told]")) {
    const trace = payload.traces.find(({ id }) => id === place.dataset.told);
    if (trace) place.textContent = new Walk(await loadGraph(trace.protocol), trace.path).moments.slice(1).map(({ step }) => step.call).join(" · ");
  }
}

const still = document.getElementById("still");
still?.addEventListener("change", () => document.getElementById("flaws").classList.toggle("only-still", still.checked));

// Before printing, opens every <details> and moves their diagrams into one flow, so that no sheet is half empty.
const [flow, folded] = document.querySelectorAll("#guarantees .stories-grid");
const moved = folded ? [...folded.children] : [];
let opened = [];
window.addEventListener("beforeprint", () => {
  flow?.append(...moved);
  opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest("#play"));
  for (const part of opened) part.open = true;
  drawStills(PAPER);
});
window.addEventListener("afterprint", () => {
  folded?.append(...moved);
  for (const part of opened) part.open = false;
  drawStills();
});

(async () => {
  if (!location.hash.startsWith("#play/")) await explorer.open(payload.protocols[0].id);
  await arrive();
  await readStills();
  drawStills();
  await tellFlaws();
  document.documentElement.dataset.ready = "";
})();
window.addEventListener("popstate", arrive);
