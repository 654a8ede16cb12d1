// A client built on the official TypeScript library: starts an agent, and prints its observations as JSON.
// Usage: node editor.mjs COMMAND …, with @agentclientprotocol/sdk resolvable from the working directory.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { Readable, Writable } from "node:stream";

const found = createRequire(pathToFileURL(process.cwd() + "/")).resolve("@agentclientprotocol/sdk");
const { client, methods, ndJsonStream } = await import(pathToFileURL(found).href);
const [command, ...words] = process.argv.slice(2);
const agent = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

let heard = "";
let speaks = () => {};
const spoken = new Promise((resolve) => (speaks = resolve));
const editor = client({ name: "editor" }).onNotification(methods.client.session.update, ({ params }) => {
  if (params.update.sessionUpdate === "agent_message_chunk") {
    heard += params.update.content.text;
    speaks();
  }
});

const told = await editor.connectWith(stream, async (peer) => {
  const prompt = (sessionId, text) =>
    peer.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  const { protocolVersion } = await peer.request(methods.agent.initialize, {
    protocolVersion: 1, clientCapabilities: {} });
  const { sessionId } = await peer.request(methods.agent.session.new, { cwd: process.cwd(), mcpServers: [] });
  const running = prompt(sessionId, "This one runs.");
  await spoken;
  const waiting = prompt(sessionId, "This one waits.");
  await peer.notify(methods.agent.session.cancel, { sessionId });
  const after = prompt(sessionId, "This one came after the cancel.");
  const ends = await Promise.all([running, waiting, after]);
  return { protocolVersion, ends: ends.map((each) => each.stopReason), heard };
});
agent.stdin.end();
console.log(JSON.stringify(told));
