// Shows one moment of a walk: the diagram, the session, its prompts, the events so far, and the properties.

function drawStage(root, walk, payload) {
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const moment = walk.now;
  drawBoard(part("board"), moment, walk.moments[walk.at - 1]);
  part("session").replaceChildren(...moment.sessions.map((session, i) => drawSession(session, walk.graph.sessions > 1 ? i + 1 : null)));
  part("events").replaceChildren(...drawEvents(walk));
  if (part("properties")) drawProperties(part, walk, payload);
}

// Closed until a property is violated.
function drawProperties(part, walk, payload) {
  const { properties } = walk.graph;
  const broken = walk.now.brokenSoFar.length;
  part("properties").replaceChildren(...properties.map((id) => drawProperty(walk, id, payload)));
  part("kept").textContent = broken ? `${broken} of ${properties.length} violated` : `None of ${properties.length} violated`;
  if (broken) part("all").open = true;
}

function drawSession({ facts, prompts }, number) {
  const rows = Object.keys(prompts).sort().map((label) => drawPrompt(label, prompts[label]));
  return html("div", { class: "session" },
    number ? html("h4", {}, `Session ${number}`) : null,
    html("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, drawFact(name, value))])),
    rows.length ? html("table", { class: "prompts" },
      html("thead", {}, html("tr", {}, ...["prompt", "state", "reached by", "events"].map((head) => html("th", { scope: "col" }, head)))),
      html("tbody", {}, ...rows)) : html("p", { class: "empty" }, "No prompt has been accepted yet."));
}

function drawFact(name, value) {
  return name === "mark" && value !== "–" ? html("span", { class: "pill mark" }, markText(value)) : value;
}

function drawPrompt(label, cell) {
  return html("tr", {},
    html("th", { scope: "row" }, label, cell.runId ? html("small", {}, " run id") : null),
    html("td", {}, html("span", { class: `pill ${cell.kind}` }, cell.text.replace(/_/g, " "))),
    html("td", {}, cell.reach === "nothing" ? "–" : cell.reach),
    html("td", {}, String(cell.ends)));
}

function drawEvents(walk) {
  const items = walk.moments.slice(1, walk.at + 1).flatMap(({ step }, i) => step.messages
    .filter(({ line, dest }) => line === "told" && dest === "Client")
    .map(({ text }) => html("li", {}, html("span", { class: "number" }, String(i + 1)), text)));
  return items.length ? [html("ol", { class: "events" }, ...items.reverse())] : [html("p", { class: "empty" }, "None yet.")];
}

function drawProperty(walk, id, payload) {
  const broken = walk.moments.slice(0, walk.at + 1).findIndex((moment) => moment.broken.includes(id));
  return html("li", { class: broken < 0 ? "kept" : "broken", "data-property": id, title: payload.properties[id] },
    html("span", { class: "sign", "aria-hidden": "true" }, broken < 0 ? "✓" : "✗"), html("span", { class: "id" }, id),
    html("span", { class: "unseen" }, broken < 0 ? " not violated" : " violated"),
    broken < 0 ? null : html("span", { class: "by" }, `by step ${broken}`));
}
