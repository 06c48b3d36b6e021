/** The list of conversations, and the drawer that it becomes on a narrow screen. */

import { button, byId, element } from "./dom.js";
import { dismiss, notify } from "./notices.js";
import { newId } from "./store.js";

const sidebar = byId("sidebar");
const menu = byId("menu");

export class Sidebar {
  #store;
  #onOpen;
  #onRename;
  #renaming = null; // id

  /** onOpen: called with a conversation, or with nothing for a new one. onRename: called with an id and a new title */
  constructor(store, { onOpen, onRename }) {
    this.#store = store;
    this.#onOpen = onOpen;
    this.#onRename = onRename;
    byId("new-chat").onclick = () => {
      showDrawer(false);
      onOpen();
    };
    menu.onclick = () => showDrawer(!sidebar.classList.contains("open"));
    byId("shade").onclick = () => showDrawer(false);
    document.addEventListener("show-sidebar", () => showDrawer(true));
    sidebar.onkeydown = (event) => {
      if (event.key !== "Escape" || !sidebar.classList.contains("open")) return;
      event.stopPropagation(); // it is the drawer that is meant, not an answer
      showDrawer(false);
      menu.focus();
    };
  }

  show() {
    const { current } = this.#store;
    byId("conversations").replaceChildren(...this.#store.list().map((entry) => this.#entry(entry, entry.id === current)));
  }

  #entry(entry, isCurrent) {
    const { id, title } = entry;
    if (this.#renaming === id) return element("li", {}, this.#renameForm(id, title));
    const open = button(title, () => this.#open(id), { className: "open", title });
    if (isCurrent) open.setAttribute("aria-current", "true");
    return element(
      "li",
      { className: isCurrent ? "current" : "" },
      open,
      button("Rename", () => this.#rename(id), { className: "quiet", "aria-label": `Rename ${title}` }),
      button("Delete", () => this.#delete(entry), { className: "quiet", "aria-label": `Delete ${title}` }),
    );
  }

  #open(id) {
    showDrawer(false);
    this.#onOpen(this.#store.load(id));
  }

  #rename(id) {
    this.#renaming = id;
    this.show();
    const field = byId("conversations").querySelector("input");
    field.focus();
    field.select();
  }

  #renameForm(id, title) {
    const field = element("input", { value: title, maxLength: 200, "aria-label": "Name of the conversation" });
    const finish = (name) => {
      if (this.#renaming !== id) return;
      this.#renaming = null;
      if (name) this.#onRename(id, name);
      this.show();
    };
    field.onblur = () => finish(field.value.trim());
    field.onkeydown = (event) => {
      if (event.key !== "Escape" && event.key !== "Enter") return;
      event.stopPropagation();
      event.preventDefault();
      finish(event.key === "Enter" ? field.value.trim() : "");
      byId("conversations").querySelector(`[aria-current]`)?.focus();
    };
    return field;
  }

  #delete({ id, title }) {
    const conversation = this.#store.load(id);
    const wasCurrent = this.#store.current === id;
    this.#store.remove(id);
    if (wasCurrent) this.#onOpen();
    this.show();
    byId("new-chat").focus();
    dismiss("storage");
    const undo = () => {
      // What was deleted stays deleted; this is a copy of it.
      const copy = { ...conversation, id: newId() };
      this.#store.save(copy);
      this.#onOpen(copy);
    };
    notify("deleted", `“${title}” is deleted.`, conversation && ["Undo", undo]);
  }
}

function showDrawer(open) {
  sidebar.classList.toggle("open", open);
  menu.setAttribute("aria-expanded", String(open));
  if (open) byId("new-chat").focus();
}
