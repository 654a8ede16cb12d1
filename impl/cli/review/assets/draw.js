// Draws a walk: as a sequence diagram, and as tokens on the state diagram.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const LINE = 22; // height of a message
const LEAST = 82; // minimum width of a lane
const MOST = 190; // maximum width of a lane
const WIDEST = 126; // width of the widest chip: in narrower lanes, chips are stacked
const LETTER = 6.1; // approximate width of a letter

// The lanes of a walk: the client, then each session and its prompts, as far as the walk goes.
function lanesOf(walk, room) {
  const lanes = [{ id: "Client", title: "Client" }];
  const last = walk.moments[walk.moments.length - 1];
  last.sessions.forEach(({ prompts }, i) => {
    lanes.push({ id: `S${i + 1}`, title: walk.graph.sessions > 1 ? `Session ${i + 1}` : "Session", session: i });
    for (const label of Object.keys(prompts).sort()) {
      lanes.push({ id: `P${label.charCodeAt(0) - 64}`, title: label, session: i, label, runId: prompts[label].runId });
    }
  });
  const wide = Math.floor(Math.max(LEAST, Math.min(MOST, room / lanes.length)));
  lanes.forEach((lane, i) => Object.assign(lane, { wide, x: wide * (i + 0.5) }));
  return lanes;
}

// The walk as a list of steps, each one row of the diagram. With `jump`, each step is a button that jumps to it.
function drawSequence(into, walk, { jump = null, sentences = {}, room = into.clientWidth } = {}) {
  const lanes = lanesOf(walk, room - (jump ? parseFloat(getComputedStyle(into).getPropertyValue("--numbers")) : 0) - 18);
  const width = lanes[0].wide * lanes.length;
  const heads = lanes.map((lane) => html("span", { class: lane.label ? "lane prompt" : "lane" }, lane.title,
    lane.runId ? html("small", {}, "run id") : null));
  const rows = walk.moments.slice(1).map((moment, i) => drawStep(walk, moment, walk.moments[i], i + 1, lanes, width, jump, sentences));
  into.replaceChildren(
    html("div", { class: "lanes", "aria-hidden": "true", style: `--lanes: ${lanes.length}; --width: ${width}px` },
      html("span", { class: "corner" }), html("div", { class: "names" }, ...heads)),
    html("ol", { class: "steps", style: `--width: ${width}px` }, ...rows));
  if (!rows.length) into.append(html("p", { class: "empty" }, "No steps yet. Take an action."));
}

function drawStep(walk, moment, before, number, lanes, width, jump, sentences) {
  const words = [...changesOf(moment, before).map(({ label, cell }) => `${label} is ${cell.text}`),
    ...moment.step.messages.slice(1).map(({ text }) => text)];
  const head = html(jump ? "button" : "span", { type: jump ? "button" : null, class: "call" }, html("span", { class: "number" }, String(number)),
    html("span", { class: "unseen" }, ` ${moment.step.call}${words.length ? `: ${words.join("; ")}` : ""}`));
  if (jump) head.addEventListener("click", () => jump(number));
  const broken = moment.broken.map((id) => html("p", { class: "breaks" }, html("strong", {}, `✗ violates ${id}`),
    moment.reasons[id] ? ` ${moment.reasons[id]}` : "", sentences[id] ? html("small", {}, ` The property: ${sentences[id]}`) : null));
  const current = jump && number === walk.at;
  return html("li", { class: `step${number > walk.at ? " undone" : ""}${moment.broken.length ? " violation" : ""}`,
    "aria-current": current ? "step" : false },
  head, strip(moment, before, lanes, width), ...broken);
}

// The prompts that a step created or moved.
function changesOf(moment, before) {
  const found = [];
  moment.sessions.forEach(({ prompts }, session) => {
    for (const [label, cell] of Object.entries(prompts)) {
      const was = before.sessions[session].prompts[label];
      if (!was || was.text !== cell.text) found.push({ session, label, cell, was });
    }
  });
  return found;
}

// “≤ A” in the model means that A and all earlier prompts are covered.
function markText(mark) { return mark.replace("≤", "up to"); }

function factOf(moment, session, name) {
  const found = moment.sessions[session].facts.find(([key]) => key === name);
  return found ? found[1] : "";
}

// One row of the diagram: the lifelines, the messages of the step, and then the new states of prompts.
function strip(moment, before, lanes, width) {
  const at = Object.fromEntries(lanes.map((lane) => [lane.id, lane.x]));
  const changed = changesOf(moment, before);
  const marks = lanes.filter((lane) => lane.id.startsWith("S"))
    .map((lane) => ({ lane, mark: factOf(moment, lane.session, "mark"), was: factOf(before, lane.session, "mark") }))
    .filter(({ mark, was }) => mark !== was);
  const chips = changed.length + marks.length;
  const below = lanes[0].wide < WIDEST ? 21 : 0; // from one chip to the next
  const messages = moment.step.messages.filter(({ line, text }) => line !== "note" || !changed.some(({ cell }) => cell.text === text)); // a chip says it
  const turn = LINE * messages.length + 16; // the middle of the chips
  const height = turn + (chips ? 15 + below * (chips - 1) : -6);
  let middle = turn - below;
  const drawn = [];
  for (const lane of lanes) drawn.push(...lifeline(lane, moment, before, turn, height));
  for (const { session, label } of newlyReached(moment, before)) {
    const lane = lanes.find((other) => other.label === label && other.session === session);
    drawn.push(svg("line", { class: "reach", x1: lane.x - lane.wide / 2, x2: lane.x + lane.wide / 2, y1: LINE - 1, y2: LINE - 1 }));
  }
  messages.forEach((message, i) => drawn.push(...arrow(message, at, LINE * (i + 1) - 6, width, lanes[0].wide)));
  for (const { session, label, cell } of changed) {
    const lane = lanes.find((other) => other.label === label && other.session === session);
    drawn.push(chip(lane, (middle += below), cell.text.replace(/_/g, " "), cell.kind));
  }
  for (const { lane, mark } of marks) drawn.push(chip(lane, (middle += below), `mark ${markText(mark)}`, "mark"));
  return svg("svg", { class: "cancelmark strip", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...drawn);
}

function newlyReached(moment, before) {
  const found = [];
  moment.sessions.forEach(({ prompts }, session) => {
    for (const [label, cell] of Object.entries(prompts)) {
      const was = before.sessions[session].prompts[label];
      if (cell.reach === "cancel" && was && was.reach !== "cancel") found.push({ session, label });
    }
  });
  return found;
}

function lifeline(lane, moment, before, turn, height) {
  if (!lane.label) return [svg("line", { class: "life", x1: lane.x, x2: lane.x, y1: 0, y2: height })];
  const was = before.sessions[lane.session].prompts[lane.label];
  const is = moment.sessions[lane.session].prompts[lane.label];
  const same = was && is && was.kind === is.kind;
  return [...band(lane.x, was, 0, same ? height : turn), ...(same ? [] : band(lane.x, is, turn, height))];
}

function band(x, cell, top, bottom) {
  if (!cell) return [];
  const wide = { active: 8, stopping: 8, done: 2 }[cell.kind] ?? 4;
  return [svg("g", { class: `band ${cell.kind}` }, svg("rect", { x: x - wide / 2, y: top, width: wide, height: bottom - top }))];
}

function arrow({ line, source, dest, text }, at, y, width, wide) {
  if (line === "everyone") {
    return [svg("rect", { class: "everyone", x: 8, y: y - 14, width: width - 16, height: 21, rx: 4 }),
      svg("text", { class: "said", x: width / 2, y, "text-anchor": "middle" }, text)];
  }
  const from = at[source];
  if (line === "note") return [svg("text", { class: "said note", x: from, y, "text-anchor": "middle" }, text)];
  const to = at[dest];
  if (from === to) {
    return [svg("text", { class: "said", x: from + 28, y: y + 2 }, text),
      svg("path", { class: `arrow ${line}`, d: `M${from},${y - 8}h22v12h-14`, fill: "none" }), head(from + 4, y + 4, -1, line)];
  }
  const way = Math.sign(to - from);
  const inFirstGap = text.length * LETTER < wide - 12; // otherwise it crosses a lifeline in any case
  const middle = inFirstGap ? from + (way * wide) / 2 : (from + to) / 2;
  return [svg("text", { class: "said", x: middle, y, "text-anchor": "middle" }, text),
    svg("line", { class: `arrow ${line}`, x1: from + way * 7, x2: to - way * 12, y1: y + 5, y2: y + 5 }), head(to - way * 5, y + 5, way, line)];
}

function head(x, y, way, line) {
  return svg("polygon", { class: `arrow ${line}`, points: `${x},${y} ${x - way * 8},${y - 4} ${x - way * 8},${y + 4}` });
}

function chip({ x }, y, text, kind) {
  const room = text.length * LETTER + 16;
  return svg("g", { class: `chip ${kind}` }, svg("rect", { x: x - room / 2, y: y - 10, width: room, height: 20, rx: 10 }),
    svg("text", { x, y: y + 4, "text-anchor": "middle" }, text));
}

// --- the board

const OUTCOME_SIGN = { "end_turn": "✓", "error": "!", "canceled": "✕", "folded": "⤵" };

// The state diagram with a token for each prompt, and the arrows of the last step highlighted.
function drawBoard(into, moment, before) {
  if (!into.firstChild) into.append(document.getElementById("board").content.cloneNode(true));
  for (const old of into.querySelectorAll(".token")) old.remove();
  for (const lit of into.querySelectorAll(".lit")) lit.classList.remove("lit");
  const inPlace = {};
  moment.sessions.forEach(({ prompts }, session) => {
    for (const [label, cell] of Object.entries(prompts)) {
      const place = cell.kind === "stopping" ? "active" : cell.kind;
      (inPlace[place] ??= []).push({ label: moment.sessions.length > 1 ? `${label}${session + 1}` : label, cell });
    }
  });
  for (const [place, tokens] of Object.entries(inPlace)) {
    const group = into.querySelector(`.place.${place}`);
    const box = group.querySelector("rect");
    group.classList.add("lit");
    const wide = 28;
    const left = +box.getAttribute("x") + (+box.getAttribute("width") - tokens.length * (wide + 4) + 4) / 2;
    tokens.forEach(({ label, cell }, i) => group.append(token(left + i * (wide + 4), +box.getAttribute("y") + 30, wide, label, cell)));
  }
  if (before) {
    for (const { cell, was } of changesOf(moment, before)) {
      const from = !was ? "start" : was.kind === "stopping" ? "active" : was.kind;
      const to = cell.kind === "stopping" ? "active" : cell.kind;
      into.querySelector(`.way.${from}-${to}`)?.classList.add("lit");
    }
  }
}

function token(x, y, wide, label, cell) {
  const outcome = cell.text.split(": ")[1];
  const words = `${label}: ${cell.text.replace(/_/g, " ")}`;
  return svg("g", { class: `token ${cell.kind}` }, svg("title", {}, words),
    svg("rect", { x, y, width: wide, height: 24, rx: 6 }),
    svg("text", { x: x + wide / 2, y: y + 17, "text-anchor": "middle" }, outcome ? label + OUTCOME_SIGN[outcome] : label));
}

// --- arrows that can be taken

const placeOf = (cell) => (!cell ? "start" : cell.kind === "stopping" ? "active" : cell.kind);

// The arrows that a possible step takes: `from-to`, with the numbers of those steps.
function waysOf(walk) {
  const found = {};
  walk.next.forEach((edge, number) => {
    const after = walk.moment(edge.target, edge.step, walk.now);
    for (const { cell, was } of changesOf(after, walk.now)) {
      const way = `${placeOf(was)}-${placeOf(cell)}`;
      if (!(found[way] ??= []).includes(number)) found[way].push(number);
    }
  });
  return found;
}

function openWays(into, walk, choose) {
  const ways = waysOf(walk);
  for (const group of into.querySelectorAll(".way")) {
    const numbers = Object.entries(ways).find(([way]) => group.classList.contains(way))?.[1] ?? [];
    group.classList.toggle("can", numbers.length > 0);
    group.onclick = numbers.length ? () => choose(numbers) : null;
    let title = group.querySelector("title");
    if (!title) group.prepend((title = svg("title")));
    title.textContent = numbers.map((number) => walk.next[number].step.call).join(", or ");
  }
}

// --- the walk in other formats

function walkAsText(walk) {
  return walk.moments.slice(1, walk.at + 1).map((moment, i) => {
    const became = changesOf(moment, walk.moments[i]).map(({ label, cell }) => `${label} ${cell.text}`);
    const told = moment.step.messages.slice(1).map(({ text }) => text);
    const broken = moment.broken.map((id) => `✗ violates ${id}: ${moment.reasons[id] ?? ""}`);
    return [`${String(i + 1).padStart(3)}  ${moment.step.call}`, became.concat(told).join(", "), ...broken].filter(Boolean).join("\n       ");
  }).join("\n") + "\n";
}

function walkAsMermaid(walk) {
  const lanes = lanesOf(walk, 0);
  const lines = lanes.map(({ id, title }) => `    participant ${id} as ${title}`);
  for (const { step } of walk.moments.slice(1, walk.at + 1)) {
    for (const { line, source, dest, text } of step.messages) {
      const says = text.replace(/;/g, ",");
      if (line === "everyone") lines.push(`    Note over ${lanes[0].id},${lanes[lanes.length - 1].id}: ${says}`);
      else if (line === "note") lines.push(`    Note over ${source}: ${says}`);
      else lines.push(`    ${source}${line === "told" ? "-->>" : "->>"}${dest}: ${says}`);
    }
  }
  return `sequenceDiagram\n${lines.join("\n")}\n`;
}

function walkAsCommand(walk, protocol) {
  const calls = walk.moments.slice(1, walk.at + 1).map(({ step }) => `'${step.call}'`);
  const sessions = walk.graph.sessions > 1 ? ` --sessions ${walk.graph.sessions}` : "";
  return `cancelmark play --protocol ${protocol}${sessions} ${calls.join(" ")}`;
}

// The diagram as one SVG file: the rows stacked, with the page's style.
function walkAsSvg(walk) {
  const lanes = lanesOf(walk, 900);
  const width = lanes[0].wide * lanes.length;
  let y = 34;
  const parts = lanes.map(({ x, title }) => svg("text", { x, y: 20, "text-anchor": "middle", "font-weight": "700" }, title));
  walk.moments.slice(1, walk.at + 1).forEach((moment, i) => {
    const drawn = strip(moment, walk.moments[i], lanes, width);
    const group = svg("g", { transform: `translate(0 ${y})` });
    group.append(...drawn.childNodes);
    parts.push(group);
    y += +drawn.getAttribute("height");
  });
  const style = svg("style", {}, [...document.querySelectorAll("style")].map((sheet) => sheet.textContent).join("\n"));
  const whole = svg("svg", { xmlns: SVG, class: "cancelmark strip", width, height: y + 8, viewBox: `0 0 ${width} ${y + 8}` },
    style, svg("rect", { width, height: y + 8, fill: "#fff" }), ...parts);
  return new XMLSerializer().serializeToString(whole);
}
