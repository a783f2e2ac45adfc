"use strict";
(() => {
  const cards = [...document.querySelectorAll(".card")];
  if (!cards.length) return;
  const links = [...document.querySelectorAll(".names a")];
  const position = document.getElementById("position");
  const switches = { m: "masks", p: "photos", o: "outlines" };
  let current = 0;

  function show(number) {
    current = (number + cards.length) % cards.length;
    cards.forEach((card, k) => card.classList.toggle("current", k === current));
    links.forEach((link, k) => link.classList.toggle("current", k === current));
    position.textContent = `${current + 1} of ${cards.length}`;
  }

  function fromAddress() {
    const found = cards.findIndex((card) => "#" + card.id === location.hash);
    show(Math.max(0, found));
  }

  function step(by) {
    show(current + by);
    const top = document.getElementById("worst").getBoundingClientRect();
    if (top.bottom < 0 || top.top > innerHeight) position.scrollIntoView({ block: "center" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest && event.target.closest(".scroll, [type=range]")) return;
    if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
    else if (event.key in switches) document.getElementById(switches[event.key]).click();
    else return;
    event.preventDefault();
  });
  document.getElementById("next").addEventListener("click", () => step(1));
  document.getElementById("previous").addEventListener("click", () => step(-1));
  addEventListener("hashchange", fromAddress);
  document.documentElement.classList.add("js");
  fromAddress();
})();
