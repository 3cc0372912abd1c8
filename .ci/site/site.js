"use strict";
// The theme puts each table into a box that scrolls; keyboards can scroll it only if it takes the focus.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
});
