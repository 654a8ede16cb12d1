// The explorer: steps through any protocol. The address of the page is always a link to the trace that is shown.

const ACTORS = { client: "Clients", operator: "Operator", server: "Server", turn: "The running turn", fault: "Faults" };
const PACE = 850; // milliseconds between two steps when a violation is replayed

class Explorer {
  constructor(root, payload) {
    this.root = root;
    this.payload = payload;
    this.playing = null;
    this.part("protocol").append(...this.menu());
    this.part("beside").append(html("option", { value: "" }, "nothing"), ...this.menu());
    this.on("beside", "change", (event) => this.compare(event.target.value));
    this.on("protocol", "change", (event) => this.open(event.target.value));
    this.on("example", "change", (event) => this.load(payload.traces[event.target.value]));
    this.on("undo", "click", () => this.goTo(this.walk.at - 1));
    this.on("redo", "click", () => this.goTo(this.walk.at + 1));
    this.on("restart", "click", () => this.open(this.protocol));
    this.on("find", "click", () => this.find());
    for (const button of root.querySelectorAll("[data-copy]")) button.addEventListener("click", () => this.copy(button.dataset.copy));
    document.addEventListener("keydown", (event) => this.key(event));
  }

  part(name) { return this.root.querySelector(`[data-part="${name}"]`); }

  // The protocols, in groups.
  menu() {
    const groups = Object.groupBy ? Object.groupBy(this.payload.protocols, ({ group }) => group) : this.payload.protocols.reduce(
      (made, protocol) => { (made[protocol.group] ??= []).push(protocol); return made; }, {});
    return Object.entries(groups).map(([label, protocols]) => html("optgroup", { label },
      ...protocols.map(({ id, title }) => html("option", { value: id }, title))));
  }

  on(name, event, act) { this.part(name).addEventListener(event, act); }

  async open(protocol, numbers = [], at = numbers.length) {
    this.stop();
    this.protocol = protocol;
    const graph = await loadGraph(protocol);
    if (this.protocol !== protocol) return; // the user has selected another one meanwhile
    this.walk = new Walk(graph, numbers);
    this.walk.jump(at);
    this.part("protocol").value = protocol;
    this.part("wanted").replaceChildren(html("option", { value: "" }, "any property"),
      ...graph.properties.map((id) => html("option", { value: id }, id)));
    this.part("example").replaceChildren(html("option", { value: "" }, "Choose …"), ...this.examples());
    this.part("size").textContent = `${graph.states.toLocaleString("en")} states, exported by the model`;
    this.draw();
    this.remember();
    this.say(this.summary());
  }

  examples() {
    const groups = {};
    this.payload.traces.forEach((trace, i) => {
      if (trace.protocol === this.protocol) (groups[trace.group] ??= []).push(html("option", { value: i }, trace.title));
    });
    return Object.entries(groups).map(([name, options]) => html("optgroup", { label: name }, ...options));
  }

  load(trace) { if (trace) return this.open(trace.protocol, trace.path, trace.path.length); }

  // --- walking

  take(number) {
    this.stop();
    this.walk.take(number);
    this.draw();
    this.remember();
    this.say(this.summary());
  }

  goTo(step) {
    this.stop();
    this.walk.jump(step);
    this.draw();
    this.remember();
    this.say(this.summary());
  }

  // Takes the step if there is only one; otherwise asks the user to choose.
  choose(numbers) {
    if (numbers.length === 1) return this.take(numbers[0]);
    this.part("next").querySelector(`[data-number="${numbers[0]}"]`)?.focus();
    this.say(`Several actions take this arrow: ${numbers.map((number) => this.walk.next[number].step.call).join(", ")}. Choose one.`);
  }

  // --- a second protocol on the same steps

  async compare(protocol) {
    this.other = protocol ? await loadGraph(protocol) : null;
    this.otherName = protocol;
    this.part("beside").value = protocol;
    this.drawOther();
  }

  drawOther() {
    this.part("other").hidden = !this.other;
    if (!this.other) return;
    const walk = new Walk(this.other);
    const lost = walk.follow(this.walk.words);
    const title = this.payload.protocols.find(({ id }) => id === this.otherName).title;
    this.part("other-title").textContent = `Compared with: ${title}`;
    drawBoard(this.part("other-board"), walk.now, walk.moments[walk.at - 1]);
    this.part("other-session").replaceChildren(...walk.now.sessions.map((session, i) => drawSession(session, this.other.sessions > 1 ? i + 1 : null)));
    const broken = walk.now.brokenSoFar;
    const difference = lost ? `They diverge after ${walk.at} steps: ${lost} is not possible in this protocol.` : this.apart(walk);
    this.part("apart").textContent = `${difference}${broken.length ? ` Violated in this protocol: ${broken.join(", ")}.` : ""}`;
    this.part("apart").classList.toggle("bad", broken.length > 0);
  }

  // The first step after which the two walks differ.
  apart(walk) {
    const shows = ({ sessions }) => JSON.stringify(sessions.map(({ prompts }) => Object.entries(prompts).map(([label, { text }]) => [label, text])));
    const step = walk.moments.findIndex((moment, i) => shows(moment) !== shows(this.walk.moments[i]));
    return step < 0 ? "So far, every prompt is in the same state in both." : `They differ from step ${step} on, ${walk.moments[step].step.call}.`;
  }

  find() {
    this.stop();
    const wanted = this.part("wanted").value;
    const { numbers, looked } = this.walk.nearestViolation(wanted);
    if (!numbers) {
      const what = wanted || (this.walk.now.brokenSoFar.length ? "any other property" : "any property");
      this.say(`No violation of ${what} is reachable: all ${looked.toLocaleString("en")} reachable states were searched.`);
      return;
    }
    this.say(`Replaying the shortest path to a violation: ${numbers.length} steps.`);
    this.play(numbers);
  }

  play(numbers) {
    const [first, ...rest] = numbers;
    this.walk.take(first);
    this.draw();
    this.remember();
    if (!rest.length) {
      this.playing = null;
      this.say(this.summary());
    } else if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.play(rest);
    } else {
      this.playing = setTimeout(() => this.play(rest), PACE);
    }
  }

  stop() {
    clearTimeout(this.playing);
    this.playing = null;
  }

  // --- sharing

  get fragment() { return `#play/${this.protocol}/${this.walk.words.map(encodeURIComponent).join("/")}`; }

  async follow(fragment) {
    const [protocol, ...words] = fragment.split("/").slice(1).map(decodeURIComponent);
    if (!this.payload.protocols.some(({ id }) => id === protocol)) return this.say(`This page has no protocol ${protocol}.`);
    const wanted = words.filter(Boolean);
    const all = this.walk && this.protocol === protocol ? this.walk.wordsUpTo(this.walk.length) : null;
    let lost = null;
    this.following = true;
    if (all && wanted.every((word, i) => word === all[i])) {
      this.stop();
      this.walk.jump(wanted.length);
    } else {
      await this.open(protocol);
      lost = this.walk.follow(wanted);
    }
    this.draw();
    this.following = false;
    this.say(lost ? `The link continues with ${lost}, which is not possible here.` : this.summary());
  }

  async copy(form) {
    const protocol = this.payload.protocols.find(({ id }) => id === this.protocol);
    if (form === "command" && !protocol.play) return this.say("This protocol is not available on the command line.");
    const [what, text] = {
      link: ["The link to this trace", () => location.href.split("#")[0] + this.fragment],
      command: ["The command", () => walkAsCommand(this.walk, protocol.play)],
      mermaid: ["The diagram as Mermaid", () => walkAsMermaid(this.walk)],
      text: ["The steps as text", () => walkAsText(this.walk)],
      svg: ["The diagram as SVG", () => walkAsSvg(this.walk)],
    }[form];
    this.part("menu").open = false;
    this.copied = text();
    try {
      await navigator.clipboard.writeText(this.copied);
      this.say(`${what} was copied.`);
    } catch {
      this.say(`The browser does not allow this page to copy. ${form === "link" ? "Copy the address of this page instead." : ""}`);
    }
  }

  // --- keys

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input, textarea") || document.querySelector("dialog[open]")) return;
    const buttons = this.part("next").querySelectorAll("button");
    const act = {
      u: () => this.goTo(this.walk.at - 1), r: () => this.goTo(this.walk.at + 1), f: () => this.find(),
    }[event.key] ?? (/^[1-9]$/.test(event.key) && buttons[event.key - 1] ? () => buttons[event.key - 1].click() : null);
    if (act) {
      event.preventDefault();
      act();
      const { top, bottom } = this.root.getBoundingClientRect();
      if (bottom < 80 || top > innerHeight - 80) this.root.scrollIntoView();
    }
  }

  // --- showing

  draw() {
    const { walk } = this;
    this.drawNext();
    drawStage(this.root, walk, this.payload);
    drawSequence(this.part("trace"), walk, { jump: (step) => this.goTo(step), sentences: this.payload.properties });
    openWays(this.part("board"), walk, (numbers) => this.choose(numbers));
    this.drawOther();
    this.part("undo").disabled = walk.at === 0;
    this.part("redo").disabled = walk.at === walk.length;
    this.part("restart").disabled = walk.length === 0;
    this.part("at").textContent = walk.length ? `step ${walk.at} of ${walk.length}` : "";
  }

  // Puts the walk into the address, so that the browser's Back and Forward step through it.
  remember() {
    if (this.following) return;
    const address = this.walk.at || this.moved ? this.fragment : location.href.split("#")[0];
    if (this.walk.at) this.moved = true;
    else if (!this.moved) return;
    if (address !== location.hash) history.pushState(null, "", address);
  }

  drawNext() {
    const into = this.part("next");
    const focused = into.contains(document.activeElement) ? document.activeElement.dataset.call : null;
    const groups = {};
    this.walk.next.forEach(({ step }, number) => (groups[step.actor] ??= []).push({ step, number }));
    const omitted = this.walk.graph.omitted(this.walk.now.state);
    let key = 0;
    const drawn = Object.keys(ACTORS).filter((actor) => groups[actor]).map((actor) => html("div", { class: "actor" },
      html("h4", {}, ACTORS[actor]), html("div", { class: "choices" }, ...groups[actor].map(({ step, number }) => this.choice(step, number, ++key)))));
    if (!drawn.length) drawn.push(html("p", { class: "empty" }, "No more actions within this page’s bounds."));
    if (this.walk.now.quiet) drawn.push(html("p", { class: "rest" }, "Quiescent: the server has nothing left to do by itself."));
    if (omitted.length) {
      drawn.push(html("details", { class: "omitted" }, html("summary", {}, `${omitted.length} more beyond this page’s bounds`),
        html("p", {}, omitted.join(" · "))));
    }
    into.replaceChildren(...drawn);
    if (focused !== null) (into.querySelector(`[data-call="${CSS.escape(focused)}"]`) ?? into.querySelector("button"))?.focus();
  }

  choice(step, number, key) {
    const button = html("button", { type: "button", class: "choice", "data-call": step.call, "data-number": number, "aria-keyshortcuts": key < 10 ? String(key) : null },
      html("code", {}, step.call), key < 10 ? html("kbd", { "aria-hidden": "true" }, String(key)) : null);
    button.addEventListener("click", () => this.take(number));
    return button;
  }

  summary() {
    const { walk } = this;
    if (!walk.at) return "Initial state: no actions yet.";
    const { step, broken, quiet } = walk.now;
    const became = changesOf(walk.now, walk.moments[walk.at - 1]).map(({ label, cell }) => `${label} is ${cell.text.replace(/_/g, " ")}`);
    return [`Step ${walk.at}: ${step.call}.`, became.length ? `${became.join(", ")}.` : "",
      broken.length ? `Violated: ${broken.join(", ")}.` : "", quiet ? "The server is quiescent." : ""].filter(Boolean).join(" ");
  }

  say(words) { this.part("said").textContent = words; }
}
