// A protocol's state graph, as exported by the model. This code does not know the protocol: it reads tables and follows edges.

class Graph {
  constructor(data) {
    this.name = data.name;
    this.sessions = data.sessions;
    this.properties = data.properties;
    this.labels = Array.from({ length: data.prompts }, (_, i) => String.fromCharCode(65 + i));
    this.data = data;
    this.cells = data.cells.map(([kind, text, runId, reach, ends, restless]) => ({
      kind, text, runId: !!runId, reach, ends, restless: restless.map(([id]) => id), reasons: restless }));
    this.steps = data.steps.values.map(([call, action, actor, messages, broken, ended]) => ({
      call, action, actor, broken: broken.map(([id]) => id), reasons: broken,
      messages: messages.map(([line, source, dest, text]) => ({ line, source, dest, text })),
      ended: ended.map(([session, label, cell]) => ({ session, label, cell: this.cells[cell] })),
    }));
    this.first = [0];
    for (const degree of data.degrees) this.first.push(this.first[this.first.length - 1] + degree);
    let met = 1;
    this.targets = data.targets.map((back) => (back === 0 ? met++ : met - back));
  }

  get states() { return this.data.degrees.length; }

  edges(state) {
    const found = [];
    for (let i = this.first[state]; i < this.first[state + 1]; i++) {
      found.push({ step: this.steps[this.data.steps.data[i]], target: this.targets[i] });
    }
    return found;
  }

  quiet(state) { return !!this.data.quiet[state]; }

  omitted(state) { return this.data.omitted.values[this.data.omitted.data[state]]; }

  // The sessions of a state: their facts by name, and their unfinished prompts by label.
  look(state) {
    const sessions = Array.from({ length: this.sessions }, () => ({ facts: [], prompts: {} }));
    for (const column of this.data.columns) {
      const value = column.values[column.data[state]];
      const session = sessions[column.session];
      if (this.labels.includes(column.name)) {
        if (value !== "") session.prompts[column.name] = this.cells[value];
      } else if (value !== "") {
        session.facts.push([column.name, value]);
      }
    }
    return sessions;
  }
}

const graphs = {};

// Unpacks a graph on first use.
function loadGraph(name) {
  graphs[name] ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById(`graph-${name}`).textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Graph(await new Response(stream).json());
  })();
  return graphs[name];
}

// A walk through a graph: the steps taken, how many of them are not undone, and the resulting moments.
class Walk {
  constructor(graph, numbers = []) {
    this.graph = graph;
    this.taken = [];
    this.at = 0;
    for (const number of numbers) this.take(number);
  }

  // The moments of the walk, from the start to the last step taken.
  get moments() {
    if (!this.told) {
      this.told = [this.moment(0, null, null)];
      for (const edge of this.taken) this.told.push(this.moment(edge.target, edge.step, this.told[this.told.length - 1]));
    }
    return this.told;
  }

  moment(state, step, before) {
    const sessions = this.graph.look(state);
    const ended = [...(before ? before.ended : []), ...(step ? step.ended : [])];
    for (const { session, label, cell } of ended) sessions[session].prompts[label] = cell;
    const reasons = step ? [...step.reasons] : []; // for each violated property: its id and the reason
    if (this.graph.quiet(state)) {
      for (const { prompts } of sessions) for (const cell of Object.values(prompts)) reasons.push(...cell.reasons);
    }
    const broken = reasons.map(([id]) => id);
    const sofar = before ? before.brokenSoFar : [];
    const fresh = [...new Set(broken)].filter((id) => !sofar.includes(id));
    return { state, step, sessions, ended, broken: fresh, reasons: reasonsOf(reasons), brokenSoFar: [...sofar, ...fresh], quiet: this.graph.quiet(state) };
  }

  get now() { return this.moments[this.at]; }
  get length() { return this.taken.length; }
  get next() { return this.graph.edges(this.now.state); }

  // Takes one of the possible steps. Discards undone steps, unless this step redoes the first of them.
  take(number) {
    const edge = this.next[number];
    const redone = this.taken[this.at];
    if (!(redone && redone.step === edge.step && redone.target === edge.target)) {
      this.taken.length = this.at;
      this.taken.push(edge);
      this.told = null;
    }
    this.at += 1;
  }

  jump(to) { this.at = Math.max(0, Math.min(to, this.length)); }

  // The walk as words, one for each step that is not undone. If a call has several results, ~2 names the second.
  get words() { return this.wordsUpTo(this.at); }

  wordsUpTo(end) {
    let state = 0;
    return this.taken.slice(0, end).map((edge) => {
      const same = this.graph.edges(state).filter((other) => other.step.call === edge.step.call);
      const which = same.findIndex((other) => other.step === edge.step && other.target === edge.target);
      state = edge.target;
      return wordOf(edge.step.call) + (which > 0 ? `~${which + 1}` : "");
    });
  }

  // Takes the steps that these words name. Stops at the first that is not possible and returns it.
  follow(words) {
    for (const word of words) {
      const [call, which = "1"] = word.split("~");
      const same = this.next.map((edge, number) => ({ edge, number })).filter(({ edge }) => wordOf(edge.step.call) === call);
      const found = same[which - 1];
      if (!found) return word;
      this.take(found.number);
    }
    return null;
  }

  // The numbers of the steps to the nearest new violation, or null, and the number of states searched.
  nearestViolation(wanted) {
    const interesting = (id) => (wanted ? id === wanted : true) && !this.now.brokenSoFar.includes(id);
    const restless = (prompts) => prompts.flatMap((cell) => cell.restless).filter(interesting);
    const key = (state, left) => `${state}|${left.join()}`;
    const left = restless(this.now.ended.map(({ cell }) => cell));
    const seen = new Set([key(this.now.state, left)]);
    let frontier = [{ state: this.now.state, left, way: null }];
    while (frontier.length) {
      const following = [];
      for (const here of frontier) {
        const edges = this.graph.edges(here.state);
        for (let number = 0; number < edges.length; number++) {
          const { step, target } = edges[number];
          const after = [...new Set([...here.left, ...restless(step.ended.map(({ cell }) => cell))])].sort();
          const there = { state: target, left: after, way: { number, before: here.way } };
          if (step.broken.some(interesting)) return { numbers: unwind(there.way), looked: seen.size };
          if (this.graph.quiet(target)) {
            const live = this.graph.look(target).flatMap(({ prompts }) => Object.values(prompts));
            if (after.length || restless(live).length) return { numbers: unwind(there.way), looked: seen.size };
          }
          if (!seen.has(key(target, after))) {
            seen.add(key(target, after));
            following.push(there);
          }
        }
      }
      frontier = following;
    }
    return { numbers: null, looked: seen.size };
  }
}

// By property: why it is violated. If several prompts violate it, each reason appears once.
function reasonsOf(pairs) {
  const found = {};
  for (const [id, why] of pairs) if (why && !(found[id] ?? "").includes(why)) found[id] = [found[id], why].filter(Boolean).join(" ");
  return found;
}

function unwind(way) {
  const numbers = [];
  for (; way; way = way.before) numbers.unshift(way.number);
  return numbers;
}

// accept(A, run id) in a link: accept.A.run_id
function wordOf(call) {
  return call.replace(")", "").split(/\(|, /).map((part) => part.replace(/ /g, "_")).join(".");
}
