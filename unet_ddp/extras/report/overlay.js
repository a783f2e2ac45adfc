document.addEventListener("input", ({ target }) => {
  if (target.id === "opacity") {
    document.documentElement.style.setProperty("--opacity", target.value + "%");
  } else if (["masks", "photos", "outlines"].includes(target.id)) {
    document.body.classList.toggle(target.value, target.checked !== target.defaultChecked);
  }
});
