"use strict";
for (const box of document.querySelectorAll(".scroll")) {
  const mark = () => {
    box.classList.toggle("before", box.scrollLeft > 1);
    box.classList.toggle("after", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
}
addEventListener("beforeprint", () => document.querySelectorAll("details:not(.long)").forEach(box => { box.open = true; }));
