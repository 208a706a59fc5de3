"""`pyflash explore` as a person uses it: by mouse and keyboard, in a narrow window, in the dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from explore.conftest import FASTEST, START
from support.browser import CHROMIUM, Browser

from pyflash.config import parse
from pyflash.explore.parts import EMULATED
from pyflash.explore.state import State

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
CONFIG = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
ANSWER = "document.querySelector('.answer').textContent"
FIELDS = "form:nth-of-type(2) > button"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser, server, monkeypatch) -> Browser:
    """The page of CONFIG. What it would compile is refused."""
    monkeypatch.setattr("pyflash.explore.parts.inspect", refuse)
    browser.set_window(1280, 900)
    browser.open(server.url)
    write_short_form(browser, CONFIG)
    return browser


def refuse(*_: object) -> object:
    raise RuntimeError("compiles nothing here")


def write_short_form(browser: Browser, text: str) -> None:
    """By keyboard alone: into the field, all of it, Enter."""
    browser.run("(e => { e.focus(); e.select(); })(document.querySelector('input[name=config]'))")
    browser.write(text)
    browser.press("Enter")
    browser.loaded()


def shown_config(browser: Browser) -> str:
    return browser.run("new URL(location.href).searchParams.get('config')")


def test_a_short_form_is_written_and_shown(page):
    assert shown_config(page) == CONFIG
    assert page.run("document.querySelector('h1').textContent") == f"{CONFIG} on sm_90"
    assert page.run(ANSWER).startswith("Legal on sm_90.")


def test_a_click_changes_a_field(page):
    page.click("input[name=swizzled]")
    page.click(FIELDS)
    page.loaded()
    assert shown_config(page) == str(parse(CONFIG).replace(swizzled=True))


def test_a_field_is_changed_by_keyboard(page):
    page.run("document.querySelector('input[name=async_copy]').focus()")
    page.press(" ")
    page.press("Enter")
    page.loaded()
    assert shown_config(page) == str(parse(CONFIG).replace(async_copy=False))
    assert page.run("document.activeElement.tagName") == "BODY"
    page.press("Tab")
    assert page.run("document.activeElement.tagName") == "SUMMARY"


def test_a_broken_rule_is_said_in_words(page):
    broken = parse(CONFIG).replace(B_r=128, B_c=256)
    write_short_form(page, str(broken))
    assert page.run(ANSWER).startswith("Not legal on sm_90: it breaks")
    text = page.run("document.querySelector('main').innerText")
    assert all(violation.sentence in text for violation in broken.violations("sm_90"))


def test_what_is_no_config_leaves_a_page_to_go_on_with(page):
    write_short_form(page, "(FP16, 128")
    assert "FP16, 128" in page.run("document.querySelector('.warn').textContent")
    write_short_form(page, CONFIG)
    assert shown_config(page) == CONFIG


def test_a_variant_is_chosen_by_keyboard(page):
    page.run("document.querySelector('select[name=variant]').focus()")
    for letter in "alibi":
        page.press(letter)
    page.click(FIELDS)
    page.loaded()
    assert page.run("new URL(location.href).searchParams.get('variant')") == "alibi"
    assert page.run("document.querySelector('h1').textContent") == f"{CONFIG} on sm_90 with alibi"
    assert "alibi" in page.run("document.querySelector('section[id^=variant]').innerText")


def test_a_click_on_a_measured_point_shows_its_config(page, server):
    page.open(f"http://127.0.0.1:{server.server_port}{State.of(START).url}")
    page.click("section[id^=measured] svg a rect")
    page.loaded()
    assert shown_config(page) == str(FASTEST)
    assert "It is this config." in page.run(
        "document.querySelector('section[id^=measured]').innerText"
    )


def test_the_emulator_runs_when_it_is_asked_for(page):
    frame = f"iframe[src^='{EMULATED}']"
    url = f'document.querySelector("{frame}").contentDocument.URL'
    assert page.run(url) == "about:blank"
    page.click(f"details:has({frame}) > summary")
    page.run(f'document.querySelector("{frame}").scrollIntoView()')
    page.loaded_in(frame)
    assert EMULATED in page.run(url)


@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("dark", [False, True])
def test_windows(page, width, dark):
    page.set_window(width, 900, dark)
    assert not page.run("document.documentElement.scrollWidth > innerWidth")
    back = page.run("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 22, 27)" if dark else "rgb(255, 255, 255)")
