// Runs the chat page's script over just as much of a document as it uses, against a real server.
// Arguments: the page, the server's address, then what a user types. Prints the log as JSON: [class, text] a turn.
import { readFileSync } from "node:fs";

const [page, address, ...typed] = process.argv.slice(2);
const script = readFileSync(page, "utf-8").match(/<script>(.*?)<\/script>/s)[1];

class Element {
  constructor() {
    Object.assign(this, { className: "", textContent: "", value: "", style: {}, children: [], listeners: {} });
    Object.assign(this, { scrollHeight: 0, scrollTop: 0, clientHeight: 0 });
    const edit = (change) => { this.className = change(this.className.split(" ")).join(" "); };
    this.classList = {
      add: (name) => edit((names) => [...names, name]),
      remove: (name) => edit((names) => names.filter((each) => each !== name)),
    };
  }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  focus() {}
}

const elements = {};
const element = (id) => (elements[id] ??= new Element());
globalThis.document = { getElementById: element, createElement: () => new Element() };
const plainFetch = globalThis.fetch;
globalThis.fetch = (path, options) => plainFetch(address + path, options);
element("temperature").value = "0";
(0, eval)(script);

const until = async (holds) => { while (!holds()) await new Promise((done) => setTimeout(done, 5)); };
await until(() => element("model").textContent !== "");
for (const text of typed) {
  element("text").value = text;
  element("form").listeners.submit({ preventDefault() {} });
  await until(() => element("send").textContent === "Stop");
  await until(() => element("send").textContent === "Send");
}
const log = element("log").children.map((turn) => [turn.className, turn.textContent]);
console.log(JSON.stringify({ model: element("model").textContent, log, left: element("text").value }));
