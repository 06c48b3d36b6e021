/** One turn of a conversation on the page. */

import { button, copyWith, element } from "./dom.js";
import { details, summary } from "./figures.js";
import { MarkdownView } from "./markdown_view.js";
import { TokenView } from "./token_view.js";

/** What the user wrote, with a way to write it anew. onEdit: takes the new text */
export class UserMessage {
  #text;
  #onEdit;

  constructor(turn, onEdit) {
    this.#text = turn.content;
    this.#onEdit = onEdit;
    this.element = element("article", { className: "message user", "aria-label": "You" });
    this.#show();
  }

  #show() {
    const edit = button("Edit", () => this.#edit(), { className: "quiet" });
    this.element.replaceChildren(
      element("p", { className: "said" }, this.#text),
      element("div", { className: "actions" }, edit),
    );
    return edit;
  }

  #edit() {
    const rows = Math.min(this.#text.split("\n").length + 1, 12);
    const field = element("textarea", { value: this.#text, "aria-label": "Your message", rows });
    const cancel = () => this.#show().focus();
    const form = element(
      "form",
      {
        className: "edit",
        onsubmit: (event) => {
          event.preventDefault();
          if (field.value.trim()) this.#onEdit(field.value.trim());
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation(); // it is the editing that is meant, not an answer
            cancel();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
      field,
      element(
        "div",
        { className: "row" },
        element("button", { type: "submit", className: "primary" }, "Send again"),
        button("Cancel", cancel),
        element("span", { className: "hint" }, "What came after it is replaced."),
      ),
    );
    this.element.replaceChildren(form);
    field.focus();
  }
}

/** What the model answers, as Markdown or as tokens. onRegenerate: asks for another answer in its place */
export class AnswerMessage {
  #turn;
  #onRegenerate;
  #markdown;
  #tokens = new TokenView();
  #body = element("div", { className: "body" });
  #footer = element("footer");

  constructor(turn, { asTokens, onRegenerate, toHtml }) {
    this.#turn = turn;
    this.#onRegenerate = onRegenerate;
    this.#markdown = new MarkdownView(toHtml);
    this.#tokens.append(turn.tokens);
    this.element = element(
      "article",
      { className: "message answer", "aria-label": "Answer", tabIndex: -1 },
      this.#body,
      this.#footer,
    );
    this.showAs(asTokens);
    if (turn.figures) this.complete();
  }

  showAs(asTokens) {
    // Only a server that says nothing about tokens leaves a finished text without them.
    const possible = this.#turn.tokens.length > 0 || !this.#turn.figures;
    this.#body.replaceChildren(asTokens && possible ? this.#tokens.element : this.#markdown.element);
  }

  /** Says that the answer is on its way: screen readers wait for its end. */
  begin() {
    this.element.setAttribute("aria-busy", "true");
    this.#body.classList.add("waiting");
  }

  /** Shows what has been added to the turn. */
  grow() {
    this.#body.classList.toggle("waiting", this.#turn.content === "");
    this.#tokens.append(this.#turn.tokens.slice(this.#tokens.count));
    this.#markdown.write(this.#turn.content);
  }

  complete() {
    const { content, error, figures } = this.#turn;
    this.grow();
    this.element.removeAttribute("aria-busy");
    this.#body.classList.remove("waiting");
    this.#markdown.write(content, true);
    const parts = [];
    if (error) parts.push(element("p", { className: "error", role: "alert" }, error));
    if (figures.tokens) parts.push(numbers(this.#turn));
    parts.push(
      element(
        "div",
        { className: "actions" },
        ...(content ? [button("Copy", (event) => copyWith(event.target, content), { className: "quiet" })] : []),
        error ? button("Try again", this.#onRegenerate) : button("Regenerate", this.#onRegenerate, { className: "quiet" }),
      ),
    );
    this.#footer.replaceChildren(...parts);
  }
}

function numbers(turn) {
  const pairs = details(turn).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  return element("details", {}, element("summary", {}, summary(turn)), element("dl", {}, ...pairs));
}
