"""The browser for tests of web pages, and a check of text contrast."""

from __future__ import annotations

import os
import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("BROWSER_FOR_TESTS") or next(filter(None, map(shutil.which, _NAMES)), None)

# Chromium's sandbox does not work for root, the usual user in containers.
OPTIONS = ["--no-sandbox"] if os.geteuid() == 0 else []

# Page widths of a desktop and of a phone, in pixels.
WIDTHS = (1280, 390)

# Returns the texts whose contrast with the background is below 4.5, the level AA of WCAG 2.
FAINT = """(() => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = numbers(c).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (numbers(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)'; };
  const ink = e => getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color'];
  return [...document.querySelectorAll('body *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .filter(e => !['OPTION', 'SCRIPT', 'title'].includes(e.tagName))
    .filter(e => e.textContent.trim() && (e.offsetParent || e.closest('svg')))
    .map(e => { const [a, b] = [light(ink(e)), light(ground(e))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)]; })
    .filter(([ratio]) => ratio < 4.5);
})()"""
