// The explorer: any protocol, one step at a time. The address of the page is always a link to the walk that is shown.

const ACTORS = { client: "Clients", operator: "Operator", server: "Server", turn: "The running turn", fault: "Faults" };
const PACE = 850; // milliseconds between the steps of a violation that is played

class Explorer {
  constructor(root, payload) {
    this.root = root;
    this.payload = payload;
    this.playing = null;
    this.part("protocol").append(...payload.protocols.map(({ id, title }) => html("option", { value: id }, title)));
    this.on("protocol", "change", (event) => this.open(event.target.value));
    this.on("example", "change", (event) => this.load(payload.traces[event.target.value]));
    this.on("undo", "click", () => this.goTo(this.walk.at - 1));
    this.on("redo", "click", () => this.goTo(this.walk.at + 1));
    this.on("restart", "click", () => this.open(this.protocol));
    this.on("find", "click", () => this.find());
    this.on("copy", "click", () => this.copy());
    root.addEventListener("keydown", (event) => this.key(event));
  }

  part(name) { return this.root.querySelector(`[data-part="${name}"]`); }

  on(name, event, act) { this.part(name).addEventListener(event, act); }

  async open(protocol, numbers = [], at = numbers.length) {
    this.stop();
    this.protocol = protocol;
    const graph = await loadGraph(protocol);
    if (this.protocol !== protocol) return; // another was asked for meanwhile
    this.walk = new Walk(graph, numbers);
    this.walk.jump(at);
    this.part("protocol").value = protocol;
    this.part("wanted").replaceChildren(html("option", { value: "" }, "any property"),
      ...graph.properties.map((id) => html("option", { value: id }, id)));
    this.part("example").replaceChildren(html("option", { value: "" }, "Choose …"), ...this.examples());
    this.part("size").textContent = `${graph.states.toLocaleString("en")} states, exported by the model`;
    this.draw();
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
    this.say(this.summary());
  }

  goTo(step) {
    this.stop();
    this.walk.jump(step);
    this.draw();
    this.say(this.summary());
  }

  find() {
    this.stop();
    const wanted = this.part("wanted").value;
    const { numbers, looked } = this.walk.nearestViolation(wanted);
    if (!numbers) {
      const what = wanted || (this.walk.now.brokenSoFar.length ? "any other property" : "any property");
      this.say(`No violation of ${what} within reach: all ${looked.toLocaleString("en")} states that lie ahead were searched.`);
      return;
    }
    this.say(`Playing the shortest way to a violation: ${numbers.length} steps.`);
    this.play(numbers);
  }

  play(numbers) {
    const [first, ...rest] = numbers;
    this.walk.take(first);
    this.draw();
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
    await this.open(protocol);
    const lost = this.walk.follow(words.filter(Boolean));
    this.draw();
    this.say(lost ? `The link goes on with ${lost}, which cannot happen here in this page.` : this.summary());
  }

  async copy() {
    const link = location.href.split("#")[0] + this.fragment;
    try {
      await navigator.clipboard.writeText(link);
      this.say("The link to this walk is copied.");
    } catch {
      this.say("The address of this page is the link to this walk; copy it from there.");
    }
  }

  // --- keys

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input")) return;
    const buttons = this.part("next").querySelectorAll("button");
    const act = {
      u: () => this.goTo(this.walk.at - 1), r: () => this.goTo(this.walk.at + 1), f: () => this.find(),
    }[event.key] ?? (/^[1-9]$/.test(event.key) && buttons[event.key - 1] ? () => buttons[event.key - 1].click() : null);
    if (act) {
      event.preventDefault();
      act();
    }
  }

  // --- showing

  draw() {
    const { walk } = this;
    this.drawNext();
    drawStage(this.root, walk, this.payload);
    drawSequence(this.part("trace"), walk, { jump: (step) => this.goTo(step), sentences: this.payload.properties });
    this.part("undo").disabled = walk.at === 0;
    this.part("redo").disabled = walk.at === walk.length;
    this.part("restart").disabled = walk.length === 0;
    this.part("at").textContent = walk.length ? `step ${walk.at} of ${walk.length}` : "";
    if (walk.length) history.replaceState(null, "", this.fragment);
    else if (location.hash.startsWith("#play/")) history.replaceState(null, "", location.href.split("#")[0]);
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
    if (!drawn.length) drawn.push(html("p", { class: "empty" }, "Nothing more can happen within the page’s bounds."));
    if (this.walk.now.quiet) drawn.push(html("p", { class: "rest" }, "At rest: the system has nothing left to do by itself."));
    if (omitted.length) {
      drawn.push(html("details", { class: "omitted" }, html("summary", {}, `${omitted.length} more beyond this page’s bounds`),
        html("p", {}, omitted.join(" · "))));
    }
    into.replaceChildren(...drawn);
    if (focused !== null) (into.querySelector(`[data-call="${CSS.escape(focused)}"]`) ?? into.querySelector("button"))?.focus();
  }

  choice(step, number, key) {
    const button = html("button", { type: "button", class: "choice", "data-call": step.call, "aria-keyshortcuts": key < 10 ? String(key) : null },
      html("code", {}, step.call), key < 10 ? html("kbd", { "aria-hidden": "true" }, String(key)) : null);
    button.addEventListener("click", () => this.take(number));
    return button;
  }

  summary() {
    const { walk } = this;
    if (!walk.at) return "At the start: nothing has happened yet.";
    const { step, broken, quiet } = walk.now;
    const became = changesOf(walk.now, walk.moments[walk.at - 1]).map(({ label, cell }) => `${label} is ${cell.text.replace(/_/g, " ")}`);
    return [`Step ${walk.at}: ${step.call}.`, became.length ? `${became.join(", ")}.` : "",
      broken.length ? `Broken: ${broken.join(", ")}.` : "", quiet ? "The system is at rest." : ""].filter(Boolean).join(" ");
  }

  say(words) { this.part("said").textContent = words; }
}
