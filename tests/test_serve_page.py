"""The page, in a real browser against a running server: what a person sees, types and copies."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from browser import CONTROL, SHIFT, Browser
from conftest import tiny_engine
from rlcd_lite.calibration_file import VERSION, CalibratedField, Calibration, Ece, HeldOut, asked, tied
from rlcd_lite.calibrators import Fusion, Identity, Platt, Temperature
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.fitting import FieldCalibration
from rlcd_lite.schema import Schema
from served import serving

KEY = "a-key'with\"quotes"
CALIBRATED = {"fields": [{"name": "severity", "type": "choice", "options": ["low", "high"]}, {"name": "human", "type": "bool"}]}
FOCUS = "document.activeElement"
OUTLINED = f"getComputedStyle({FOCUS}).outlineStyle === 'solid'"
ROWS = """[...document.querySelectorAll('article')].map(card => [card.querySelector('h3').textContent,
  [...card.querySelectorAll('li')].map(li => [li.children[1].firstChild.textContent, li.lastChild.title, li.lastChild.textContent,
    li.querySelector('.fill').style.width, li.classList.contains('chosen')])])"""


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> DecisionEngine:
    return tiny_engine(tokenizer, layout="context-first")


def calibrated(name: str, right: int) -> CalibratedField:
    """A field that is always 0.9 sure, and on 60 held-out rows was so often right."""
    fusion = Fusion(mean=(0,) * 5, scale=(1,) * 5, weights=(0,) * 5, intercept=0)
    sure = Platt(slope=0, intercept=math.log(9))
    plain = Identity()
    methods = {"softmax": sure, "stated": plain, "stated_mean": plain, "fused": fusion, "distribution": plain}
    fitted = FieldCalibration(field=name, rows=50, seed=0, signal="softmax", methods={}, signals={}, **methods)
    correct = (1,) * right + (0,) * (60 - right)
    found = {"confidence": (0.9,) * 60, "label": (0,) * 60, "label_probability": (0.4,) * 60, "label_mass": (1,) * 60}
    ece = Ece(estimate=0.123, low=0.0456, high=0.2, null_floor=0.1)
    temperature = Temperature(value=2, at_ceiling=False)
    held_out = HeldOut(correct=correct, **found)
    return CalibratedField(distribution=temperature, fitted=fitted, grid=(0.5,), held_out=held_out, ece=ece, options=2)


@pytest.fixture(scope="module")
def calibration(engine: DecisionEngine) -> Calibration:
    schema = Schema.of(CALIBRATED)
    of = {"made_by": engine.made_by(), "dataset": "by hand", "asked": asked(schema, False), "varying": False, "tied": tied(schema)}
    fields = {"severity": calibrated("severity", 60), "human": calibrated("human", 30)}
    return Calibration(version=VERSION, consistency="enforce", rows=50, held_out_rows=60, fields=fields, **of)


@pytest.fixture(scope="module")
def url(engine: DecisionEngine, calibration: Calibration) -> Iterator[str]:
    with serving(engine, calibrations=[calibration]) as found:
        yield f"{found.url}/"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        message = "no program chromium: install Debian's package chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with Browser(program, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Browser]:
    """The page as it opens; afterwards, no complaint, and no request to anyone but its own server."""
    browser.size(1280, 900)
    browser.open(url)
    browser.events.clear()
    yield browser
    said = [text for text in browser.complaints() if "status of 4" not in text]  # the browser's note of a refused request
    assert said == []
    assert [asked for asked in browser.requests() if asked != f"{url}v1/decide"] == []


def fill(page: Browser, place: str, text: str) -> None:
    """Put a text into a control as if it were typed."""
    page.run(
        f"(box => {{ box.focus(); box.value = {json.dumps(text)}; "
        f"box.dispatchEvent(new InputEvent('input', {{bubbles: true}})); }})(document.querySelector({json.dumps(place)}))"
    )


def decide(page: Browser) -> dict[str, Any]:
    """Press the button; the answer as the page shows it in full."""
    page.run("document.querySelector('button[type=submit]').click()")
    page.until("!document.getElementById('results').hasAttribute('aria-busy')")
    assert page.run("document.getElementById('error').textContent") == ""
    answer: dict[str, Any] = json.loads(page.run("document.querySelector('#raw pre').textContent"))
    return answer


def error(page: Browser) -> str:
    """What the page says is wrong, once it does."""
    return str(page.until("document.getElementById('error').textContent"))


def written(page: Browser) -> Any:
    """The schema's JSON in the page."""
    return json.loads(page.run("document.getElementById('schema').value"))


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The server's own answer."""
    request = urllib.request.Request(f"{url}v1/decide", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)
    return found


def answers(found: dict[str, Any]) -> Any:
    """All of an answer that doesn't depend on what was asked before."""
    rounded = json.loads(json.dumps(found), parse_float=lambda number: round(float(number), 5))
    return {key: value for key, value in rounded.items() if key != "usage"}


def test_one_click_on_the_example_gives_bars_with_the_servers_numbers(page: Browser, url: str) -> None:
    context = page.run("document.getElementById('text').value")
    shown = decide(page)
    assert answers(shown) == answers(ask(url, {"context": context, "schema": written(page)}))
    rows = page.run(ROWS)
    assert [name for name, _ in rows] == ["severity", "team", "needs_human"]
    for name, options in rows:
        field = shown["fields"][name]
        assert {option: float(p) for option, p, *_ in options} == field["probabilities"]
        assert [option for option, *_ in options] == list(field["probabilities"])
        assert [float(short) for _, _, short, _, _ in options] == [round(p, 3) for p in field["probabilities"].values()]
        widths = [float(width.rstrip("%")) / 100 for *_, width, _ in options]
        assert widths == pytest.approx(list(field["probabilities"].values()), abs=1e-4)
        assert [option for option, *_, chosen in options if chosen] == [json.dumps(field["value"]).strip('"')]
    said = page.run("document.getElementById('answers').innerText")
    assert said.count("not calibrated") == 3
    assert f"All answers together: {shown['probability']:.3f}" in said
    assert f"{shown['fields']['team']['stated']:.3f} (mean {shown['fields']['team']['stated_mean']:.3f})" in said
    assert page.run("document.getElementById('status').textContent").startswith(f"severity: {shown['decision']['severity']};")


def test_a_pasted_json_schema_is_decided_with_its_options_in_order(page: Browser) -> None:
    pasted = {
        "type": "object",
        "properties": {
            "room": {"enum": ["10", "9", "-1", "Größe"], "description": "which \u2028 one"},
            "change": {"type": "integer", "minimum": -2, "maximum": 2},
            "plan": {"type": "object", "properties": {"paid": {"type": "boolean"}}},
        },
    }
    fill(page, "#schema", json.dumps(pasted))
    assert "JSON Schema" in page.run("document.getElementById('builder-note').textContent")
    assert page.run("document.querySelectorAll('#builder fieldset').length") == 0
    shown = decide(page)
    assert [(name, [option for option, *_ in options]) for name, options in page.run(ROWS)] == [
        ("room", ["10", "9", "-1", "Größe"]),
        ("change", ["-2", "-1", "0", "1", "2"]),
        ("plan.paid", ["true", "false"]),
    ]
    assert list(shown["decision"]) == ["room", "change", "plan"]
    assert f"Expectation\n{shown['fields']['change']['expectation']:.3f}" in page.run(
        "document.getElementById('answers').innerText"
    )


def test_the_builder_writes_the_json_and_reads_it(page: Browser) -> None:
    first = written(page)
    fill(page, "#builder fieldset:nth-child(1) input", "urgency")
    fill(page, "#builder fieldset:nth-child(1) textarea", "now | within the hour\n\n  later \nnever | in \u2028 words | and more")
    options = [
        {"value": "now", "description": "within the hour"},
        "later",
        {"value": "never", "description": "in \u2028 words | and more"},
    ]
    assert written(page)["fields"] == [{"name": "urgency", "type": "choice", "options": options}, *first["fields"][1:]]
    page.run("document.querySelector('#builder fieldset:nth-child(2) button').click()")
    page.run("document.getElementById('add').click()")
    page.write("stars")
    choose = "(box => { box.value = 'int'; box.dispatchEvent(new Event('change')); })"
    page.run(f"{choose}(document.querySelector('#builder fieldset:nth-child(3) select'))")
    fill(page, "#builder fieldset:nth-child(3) input[type=number]", "2")
    assert written(page)["fields"][1:] == [first["fields"][2], {"name": "stars", "type": "int", "minimum": 2, "maximum": 5}]
    assert set(decide(page)["fields"]["stars"]["probabilities"]) == {"2", "3", "4", "5"}
    # and back: what the JSON says is in the form, and keys that the form doesn't know stay
    fields = [
        {"name": "a", "type": "bool", "optional": True, "description": "d"},
        {"name": "b", "type": "score", "options": [1, 2]},
    ]
    fill(page, "#schema", json.dumps({"rules": [], "fields": fields}))
    assert "edited as JSON" in page.run("document.querySelector('#builder').textContent")  # 1 is not "1"
    fill(page, "#builder fieldset:nth-child(1) input", "c")
    assert written(page) == {"rules": [], "fields": [fields[0] | {"name": "c"}, fields[1]]}


@pytest.mark.parametrize("number", ["1.0", "12345678901234567890", '1, "name": "b"'])
def test_the_form_leaves_alone_what_it_would_change(page: Browser, number: str) -> None:
    text = f'{{"fields": [{{"name": "a", "type": "int", "minimum": {number}, "maximum": 3}}]}}'
    fill(page, "#schema", text)
    assert page.run("document.querySelectorAll('#builder fieldset').length") == 0
    assert page.run("document.getElementById('schema').value") == text


def test_a_mistake_is_said_and_nothing_that_was_typed_is_lost(page: Browser, url: str) -> None:
    decide(page)
    wrong = {"fields": [{"name": "one", "type": "choice", "options": ["<b>only</b>"]}]}
    fill(page, "#schema", json.dumps(wrong))
    fill(page, "#text", "kept")
    page.run("document.querySelector('button[type=submit]').click()")
    assert error(page) == "field 'one' has 1 option: a field needs between 2 and 255."
    assert page.run("document.querySelectorAll('article').length") == 0  # no answer to another question stays
    assert page.run("document.getElementById('text').value") == "kept"
    assert written(page) == wrong
    sent = len(page.requests())
    fill(page, "#schema", '{"fields": [')
    page.run("document.querySelector('button[type=submit]').click()")
    assert error(page).startswith("The schema can't be read. Not JSON: ")
    assert len(page.requests()) == sent
    fill(page, "#schema", json.dumps({"fields": [{"name": "one", "type": "bool"}]}))
    fill(page, "#max-risk", "0.5")
    page.run("document.querySelector('button[type=submit]').click()")
    page.until("document.getElementById('error').textContent.includes('calibration')")
    page.run("(box => { box.closest('details').open = true; box.select(); })(document.getElementById('max-risk'))")
    page.write("1e")
    page.press("Enter", CONTROL)
    page.until("document.getElementById('error').textContent.includes('is not a number')")
    fill(page, "#max-risk", "")
    assert list(decide(page)["fields"]) == ["one"]


def test_the_last_click_counts(page: Browser) -> None:
    slow = "window.real = fetch; window.fetch = (...all) => new Promise(go => setTimeout(go, 200)).then(() => real(...all))"
    page.run(f"{slow}; 0")
    page.run("document.querySelector('button[type=submit]').click()")
    assert page.run("document.getElementById('results').ariaBusy") == "true"
    fill(page, "#schema", "[]")
    page.run("document.querySelector('button[type=submit]').click()")
    assert error(page) == "The schema can't be read. A schema is a JSON object: begin it with {."
    page.run("new Promise(go => setTimeout(go, 400))")
    assert error(page) == "The schema can't be read. A schema is a JSON object: begin it with {."
    assert page.run("document.querySelectorAll('article').length") == 0


def test_the_page_says_when_the_server_is_gone(browser: Browser, engine: DecisionEngine) -> None:
    with serving(engine) as gone:
        browser.open(f"{gone.url}/")
    browser.run("document.querySelector('button[type=submit]').click()")
    assert error(browser) == "The server can't be reached: is it still running?"


def test_calibrated_answers_say_what_was_applied_and_what_to_do(page: Browser) -> None:
    fill(page, "#schema", json.dumps(CALIBRATED))
    fill(page, "#max-risk", "0.1")
    fill(page, "#sets", "0.2")
    shown = decide(page)
    cards = page.run("[...document.querySelectorAll('article')].map(card => card.innerText)")
    for card, (name, field) in zip(cards, shown["fields"].items(), strict=True):
        assert "Calibrated confidence\n0.900\nBy\nsoftmax, platt, fitted on 50 rows; probabilities: temperature" in card
        assert "Held-out ECE\n0.123 (0.046 to 0.200), 60 rows" in card
        assert card.count("in the set") == len(field["set"]) > 0, name
        assert f"Set\n{', '.join(json.dumps(value).strip(chr(34)) for value in field['set'])}" in card
    assert "✓ automate" in cards[0]
    assert "⚑ review" in cards[1]
    assert shown["notes"] == [page.run("document.querySelector('#answers > p').textContent")]
    assert "errs too often" in shown["notes"][0]


def test_the_keyboard_is_enough(page: Browser) -> None:
    seen = []
    for _ in range(40):
        page.press("Tab")
        assert page.run(OUTLINED), page.run(f"{FOCUS}.outerHTML")
        seen.append(page.run(f"{FOCUS}.id || {FOCUS}.textContent"))
        if seen[-1] == "Decide":
            break
    assert seen[:2] == ["Skip to the answers", "text"]
    assert {"add", "Remove"} <= set(seen)
    page.press("Enter")
    page.until("document.querySelectorAll('article').length === 3")
    page.press("Tab")
    assert page.run(f"{FOCUS}.textContent") == "The same call with curl"
    page.press("Enter")
    assert page.run("document.getElementById('call').open")
    page.press("Tab", SHIFT)
    page.press("Tab", SHIFT)
    assert page.run(f"{FOCUS}.textContent") == "Act on it, and the key"
    page.run("document.getElementById('text').select()")
    page.write("Another text.")
    page.press("Enter", CONTROL)
    page.until("document.querySelector('#call pre').textContent.includes('Another text.')")
    page.until("document.querySelectorAll('article').length === 3")
    # a field is added and taken away, and the focus stays where the hands are
    page.run("document.getElementById('add').focus()")
    page.press("Enter")
    assert page.run(f"{FOCUS}.value") == "field_4"
    page.press("Tab")
    page.press("Tab")
    page.press(" ")
    assert [field["name"] for field in written(page)["fields"]] == ["severity", "team", "needs_human"]
    assert page.run(f"{FOCUS}.getAttribute('aria-label')") == "Remove the field needs_human"


def test_every_control_has_a_name(page: Browser) -> None:
    decide(page)
    page.run("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "spinbutton", "link", "region", "list"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(controls) > 25
    assert [node for node in controls if not node.get("name", {}).get("value")] == []
    assert {node["role"]["value"] for node in nodes if not node["ignored"]} >= {"alert", "status", "main", "banner"}


def test_a_phone_scrolls_one_way_alone(page: Browser) -> None:
    page.size(360, 740)
    word = "x" * 120
    fields = [
        {"name": word, "type": "choice", "options": [word + "1", word + "2"], "description": word},
        {"name": "b", "type": "bool"},
    ]
    fill(page, "#text", word)
    fill(page, "#schema", json.dumps({"fields": fields}))
    decide(page)
    page.run("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert page.run("document.documentElement.scrollWidth") == 360
    beyond = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 360.5).map(e => e.outerHTML)"
    assert page.run(beyond) == []
    assert page.run("document.getElementById('results').getBoundingClientRect().top < innerHeight / 2")  # they were brought up


NASTY = "it's \"quoted\" `x` $(echo no) $HOME \\n \\ !! %s\r\n\tJSON\nJSON\n\u2028 é 😀 \x00 --data '@/etc/passwd'"


def test_the_curl_line_gives_the_same_answer_in_a_shell(page: Browser, tmp_path: Path) -> None:
    fill(page, "#schema", json.dumps({"fields": [{"name": NASTY.replace("\x00", ""), "type": "bool", "description": "'\"\n"}]}))
    page.run(f"document.getElementById('text').value = {json.dumps(NASTY)}")
    fill(page, "#max-risk", "")
    shown = decide(page)
    line = page.run("document.querySelector('#call pre').textContent")
    for shell in ("sh", "bash"):
        got = subprocess.run([shell], input=line, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert got.stderr == ""
        assert answers(json.loads(got.stdout)) == answers(shown)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_sent_but_neither_shown_nor_stored(browser: Browser, engine: DecisionEngine) -> None:
    with serving(engine, key=KEY) as keyed:
        browser.open(f"{keyed.url}/")
        browser.run("document.querySelector('button[type=submit]').click()")
        assert "key" in error(browser)
        fill(browser, "#key", KEY)
        shown = decide(browser)
        line = browser.run("document.querySelector('#call pre').textContent")
        assert KEY not in browser.run("document.documentElement.outerHTML")
        assert browser.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        env = os.environ | {"RLCD_API_KEY": KEY}
        got = subprocess.run(["bash"], input=line, capture_output=True, text=True, check=True, env=env)
        assert answers(json.loads(got.stdout)) == answers(shown)


def test_markup_in_names_options_texts_and_errors_is_inert(page: Browser) -> None:
    mark = "<img src=x onerror='window.hurt = 1'><script>window.hurt = 2</script>"
    options = [mark, "__proto__", "constructor", "</script><b>", "=x", " 007"]
    fill(page, "#text", mark)
    fields = [{"name": mark, "type": "choice", "options": options, "description": mark}, {"name": "__proto__", "type": "bool"}]
    fill(page, "#schema", json.dumps({"fields": fields}))
    decide(page)
    assert [option for option, *_ in page.run(ROWS)[0][1]] == options
    assert page.run(ROWS)[1][0] == "__proto__"
    fill(page, "#schema", json.dumps({"fields": [{"name": mark, "type": "choice", "options": [mark]}]}))
    page.run("document.querySelector('button[type=submit]').click()")
    assert error(page).startswith('field "<img')
    time.sleep(0.1)  # an image would have failed by now
    assert page.run("document.querySelectorAll('img, script:not(body > script), b').length + (window.hurt ?? 0)") == 0


def test_a_long_list_shows_its_best_and_all_on_demand(page: Browser) -> None:
    options = [str(n) for n in range(60, 0, -1)]
    fill(page, "#schema", json.dumps({"fields": [{"name": "pick", "type": "choice", "options": options}]}))
    probabilities = decide(page)["fields"]["pick"]["probabilities"]
    best = sorted(options, key=lambda option: -probabilities[option])[:8]
    assert [option for option, *_ in page.run(ROWS)[0][1]] == sorted(best, key=options.index)
    page.run("document.querySelector('article button').click()")
    assert [option for option, *_ in page.run(ROWS)[0][1]] == options
    assert page.run("document.querySelector('article button').textContent") == "Show fewer"


def test_copy_buttons_copy(page: Browser, url: str) -> None:
    decide(page)
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=url.rstrip("/"))
    page.run("document.getElementById('call').open = true; document.querySelector('#call button').focus()")
    page.press("Enter")
    page.until("document.querySelector('#call button').textContent === 'Copied'")
    copied = page.run("navigator.clipboard.readText()")
    assert copied == page.run("document.querySelector('#call pre').textContent")
