// Puts what the emulator says has changed where it belongs. The page works without it.
"use strict";

const MOST = 50; // things in a list that grows
const state = document.getElementById("live-state");
const stream = new EventSource(document.body.dataset.live);

function said(text) {
  if (state.textContent !== text) state.textContent = text;
}

function place(event) {
  const { id, html } = JSON.parse(event.data);
  return [document.getElementById(id), html];
}

stream.addEventListener("open", () => said("Updates as it happens."));
stream.addEventListener("error", () => said("Updates have stopped; trying again."));

stream.addEventListener("put", (event) => {
  const [element, html] = place(event);
  if (element) element.innerHTML = html;
});

stream.addEventListener("add", (event) => {
  const [element, html] = place(event);
  if (!element) return;
  element.insertAdjacentHTML("afterbegin", html);
  while (element.children.length > MOST) element.lastElementChild.remove();
});
