/** The conversation that is open: sending, streaming, stopping, regenerating, editing. */

import { Answer } from "./answer.js";
import { chatChunks, markdownToHtml } from "./api.js";
import { byId, oncePerFrame } from "./dom.js";
import { countByDrafter, showGauges } from "./figures.js";
import { AnswerMessage, UserMessage } from "./message.js";
import { announce } from "./notices.js";
import { showLegend } from "./palette.js";
import { newConversation } from "./store.js";

const NEAR = 80; // pixels from the end within which the page follows the answer
const TITLE_LENGTH = 60;

export class Chat {
  model = "";
  conversation = newConversation();
  #parameters;
  #onChange;
  #onState;
  #running = null; // AbortController of the answer that is being written
  #views = [];
  #asTokens = false;
  #follow = true; // the reader is at the end and wants to stay there
  #height = 0; // of the conversation when that was looked at last, in pixels
  #scroll = byId("scroll");

  /** onChange: called with a conversation that has something to keep. onState: called when an answer begins or ends */
  constructor(parameters, onChange, onState) {
    this.#parameters = parameters;
    this.#onChange = onChange;
    this.#onState = onState;
    this.#scroll.onscroll = () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
      // The event comes late: if the text has grown since, the distance from its end says nothing about the reader.
      if (scrollHeight === this.#height) this.#follow = scrollHeight - scrollTop - clientHeight < NEAR;
    };
    // Whatever moves the end: tokens, Markdown that comes later, a smaller window.
    const observer = new ResizeObserver(() => {
      this.#height = this.#scroll.scrollHeight;
      if (this.#follow) this.#scroll.scrollTop = this.#height;
    });
    observer.observe(byId("messages"));
    observer.observe(this.#scroll);
  }

  get isRunning() {
    return this.#running !== null;
  }

  /** Another tab has changed this conversation: goes on with its turns. An answer that is being written goes first. */
  refresh(conversation) {
    if (!this.isRunning) this.open(conversation);
  }

  open(conversation) {
    this.stop();
    for (const turn of conversation.turns) {
      // Without them the page was closed in the middle of an answer.
      if (turn.role === "assistant") turn.figures ??= { tokens: turn.tokens.length };
    }
    this.conversation = conversation;
    this.#follow = true;
    this.#showAll();
  }

  showAsTokens(asTokens) {
    this.#asTokens = asTokens;
    for (const view of this.#views) view.showAs?.(asTokens);
    this.#showLegend();
  }

  /** Sends a message; false if a parameter is wrong. */
  send(text) {
    return this.#ask([...this.conversation.turns, { role: "user", content: text }]);
  }

  stop() {
    this.#running?.abort();
  }

  /** Keeps what there is of an unfinished answer: the page is going away. */
  keep() {
    if (this.isRunning) this.#onChange(this.conversation);
  }

  /** Makes these the turns of the conversation, the last one the user's, and has the model answer. */
  #ask(turns) {
    this.stop();
    if (!this.#parameters.ready()) return false;
    this.conversation.title ||= titleOf(turns[0].content);
    this.conversation.turns = turns;
    this.#follow = true;
    this.#generate(this.conversation);
    return true;
  }

  async #generate(conversation) {
    const body = { ...this.#parameters.request(history(conversation.turns)), model: this.model };
    const answer = new Answer();
    // What is said of the finish holds if the page is closed before there is one.
    const turn = { role: "assistant", content: "", tokens: answer.tokens, seed: body.seed, finish: "broken" };
    conversation.turns.push(turn);
    conversation.updated = Date.now();
    this.#onChange(conversation);

    const running = new AbortController();
    this.#running = running;
    this.#showAll();
    this.#onState();
    const view = this.#views.at(-1);
    // Regenerate, or the message that was edited, had the focus and is gone: go on beside what has taken its place.
    if (document.activeElement === document.body) view.element.focus({ preventScroll: true });
    view.begin();
    await fill(turn, answer, chatChunks(body, running.signal), () => {
      view.grow();
      if (this.#running === running) this.#showProgress(answer.figures);
    });
    view.complete();
    this.#onChange(conversation);
    if (this.#running !== running) return; // another answer has taken its place
    this.#running = null;
    this.#showProgress(turn.figures);
    this.#onState();
    announce(turn.error ?? `The answer is complete: ${turn.figures.tokens} tokens.`);
  }

  #showAll() {
    const { turns } = this.conversation;
    this.#views = turns.map((turn, place) =>
      turn.role === "user"
        ? new UserMessage(turn, (content) => this.#ask([...turns.slice(0, place), { role: "user", content }]))
        : new AnswerMessage(turn, {
            asTokens: this.#asTokens,
            onRegenerate: () => this.#ask(turns.slice(0, place)),
            toHtml: markdownToHtml,
          }),
    );
    byId("messages").replaceChildren(...this.#views.map((view) => view.element));
    byId("welcome").hidden = turns.length > 0;
    this.#showProgress(turns.at(-1)?.figures);
  }

  #showProgress(figures) {
    showGauges(figures);
    this.#showLegend();
  }

  #showLegend() {
    const legend = byId("legend");
    legend.hidden = !this.#asTokens;
    if (this.#asTokens) showLegend(legend, countByDrafter(this.conversation.turns.flatMap((turn) => turn.tokens ?? [])));
  }
}

/** Fills a turn with what the server sends, and calls `onProgress` before frames that can show more of it. */
async function fill(turn, answer, chunks, onProgress) {
  const showSoon = oncePerFrame(() => turn.figures ?? onProgress());
  try {
    for await (const chunk of chunks) {
      answer.add(chunk);
      turn.content = answer.text;
      showSoon();
    }
    turn.finish = answer.finish ?? "stop";
  } catch (error) {
    if (error.name === "AbortError") turn.finish = "stopped";
    else turn.error = error.message;
  }
  turn.figures = answer.figures;
}

/** Messages for the server: answers that never came are left out, so two questions may become one. */
function history(turns) {
  const messages = [];
  for (const { role, content } of turns) {
    const last = messages.at(-1);
    if (content === "") continue;
    if (last?.role === role) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line;
}
