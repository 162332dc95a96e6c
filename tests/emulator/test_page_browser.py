"""The emulator's page in a real browser: with the keyboard alone, at two widths, in light and dark,
and without JavaScript.

Needs playwright and an installed Chromium; without them the tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest

from sfpubsub.emulator.server import EmulatorServer

from ..browser import BROWSER, FAINT, OPTIONS, WIDTHS
from .support import ORDERS, WAIT_S, Client, commit
from .test_page import PAGES, TOPIC

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    """One headless browser for all tests of the module."""
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def org(tmp_path_factory):
    """An emulator with a very long field value, an open stream, and a managed subscription with a
    committed position.
    """
    with EmulatorServer(tmp_path_factory.mktemp("data")) as emulator:
        emulator.publish(ORDERS, [{"City__c": "x" * 300, "Notes__c": "<b>bold</b>"}])
        client = Client(emulator.grpc_target, emulator.metadata)
        client.subscribe(num_requested=42).events(1)
        managed = client.managed()
        managed.send(commit(managed.events(1)[0].replay_id))
        managed.answer()
        yield emulator
        client.close()


@pytest.fixture
def visit(browser, org):
    """Return a function that loads a page; the test fails if the browser logs anything or sends a
    request to another host.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def note(request: Any) -> None:
        if not request.url.startswith(org.http_url):
            complaints.append(f"asked for {request.url}")

    def load(path: str, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT_S * 1000)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note)
        page.goto(org.http_url + path)
        return page

    yield load
    for context in contexts:
        context.close()
    assert not complaints


def test_publish_with_the_keyboard_alone(visit):
    """An event can be published and expanded in the list with the keyboard alone.

    Reloading the page does not publish it again.
    """
    page = visit(TOPIC)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Publish an event"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by-key")
    page.keyboard.press("Enter")
    page.wait_for_url("**done=published")
    assert page.locator(".notice").text_content() == "Published."
    first = page.locator("#events > li").first
    assert "by-key" in first.locator("summary").text_content()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert '"Order_Number__c": "by-key"' in first.locator("pre").text_content()
    page.reload()  # must not publish again
    assert page.locator("#events summary", has_text="by-key").count() == 1


def test_events_and_counts_are_updated_live(visit, org):
    """An event published by another client appears on an open page without a reload.

    Its values are escaped, the counter is updated, and the focus does not move.
    """
    page = visit(TOPIC)
    published = page.locator("[id$=-published]")
    before = int(published.text_content())
    page.locator("#publish summary").focus()
    org.publish(ORDERS, [{"Order_Number__c": "<i>live</i>"}])
    first = page.locator("#events > li summary", has_text="<i>live</i>")
    first.wait_for()
    assert first.count() == 1
    sync_api.expect(published).to_have_text(str(before + 1))
    assert page.evaluate("document.activeElement.textContent") == "Publish an event"
    assert page.locator("#live-state").text_content() == "Live updates are on."


def test_record_forms_publish_change_events(visit):
    """A record can be created, edited and deleted through its forms, and each change event appears
    on the page.
    """
    page = visit("/ui/records?object=Account")
    page.get_by_text("New Account", exact=True).click()
    page.get_by_label("Account Name").fill("Burlington")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="Account Burlington").wait_for()
    assert "CREATE Account" in page.locator("#events > li summary").first.text_content()
    page.get_by_label("Phone", exact=True).fill("+43 1 2")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("The record was saved.").wait_for()
    update = page.locator("#events > li").first
    update.locator("summary").click()
    assert "UPDATE Account" in update.locator("summary").text_content()
    assert '"Phone": "+43 1 2"' in update.locator("pre").text_content()
    other = visit("/ui/topic?name=/data/AccountChangeEvent")
    page.get_by_role("button", name="Delete").click()
    other.locator("#events summary", has_text="DELETE Account").wait_for()


def test_faults_and_the_clock_can_be_set_with_forms(visit, org):
    """A fault can be switched on and off with its form, and a jump of the clock appears on a page
    that is already open.
    """
    page = visit("/ui/faults")
    page.locator("summary", has_text="withhold_keepalive").click()
    page.locator("form[aria-label=withhold_keepalive] button").click()
    page.locator("#plan", has_text="withhold_keepalive").wait_for()
    assert org.faults.report()[-1]["kind"] == "withhold_keepalive"
    page.get_by_role("button", name="Switch off").click()
    page.get_by_text("The fault is off.").wait_for()
    assert org.faults.report()[-1]["off"]
    page = visit("/ui/clock")
    page.get_by_role("button", name="+ 1 hour").click()
    page.get_by_text("The clock was moved forward.").wait_for()
    org.clock.jump(3600)
    sync_api.expect(page.locator("#ahead")).to_have_text("2 h 0 min 0 s")


def test_publish_without_javascript(visit, org):
    """Without JavaScript, an event can be published and is then listed."""
    page = visit(TOPIC, java_script_enabled=False)
    page.locator("#publish > summary").click()
    page.get_by_label("Order_Number__c").fill("no-script")
    page.get_by_role("button", name="Publish").click()
    assert "no-script" in page.locator("#events > li summary").first.text_content()


def test_every_page_is_accessible(visit, org):
    """On every page, at both widths, nothing overflows; every control has a name; and in both color
    schemes all text has enough contrast.
    """
    page = visit("/")
    for path in PAGES:
        page.goto(org.http_url + path)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate(_NAMELESS) == [], path
        for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(18, 22, 28)")):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
            assert page.evaluate(FAINT) == [], (path, scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, (path, width, over)


_NAMELESS = """[...document.querySelectorAll('input, select, textarea, button, summary, a')]
  .filter(e => e.type !== 'hidden')
  .filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()))
  .map(e => e.outerHTML)"""
