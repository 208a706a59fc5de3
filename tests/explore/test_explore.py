"""`pyflash explore` through HTTP: every state is a page, has a URL, and says what is wrong."""

from __future__ import annotations

import dataclasses
import html
import http.client
import json
import re
import signal
import subprocess
import sys
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from explore.conftest import FASTEST, MEASURED, SECONDS, START
from support.command_lines import config_of
from support.inspections import looked_into_sm90
from support.pages import check_page
from support.reports import emulated
from typer.testing import CliRunner

from pyflash.cli import app
from pyflash.codegen import emit
from pyflash.codegen.build import compiled_features
from pyflash.config import ARCHS, FAMILIES, FORWARD, parse
from pyflash.config.features import Features
from pyflash.config.fields import describe
from pyflash.explore import parts
from pyflash.explore.form import FAMILY, FIELDS_OF, problem_field
from pyflash.explore.measured import Measured
from pyflash.explore.parts import EMULATED, LAYOUTS, PARTS
from pyflash.explore.server import HOST, Explorer
from pyflash.explore.state import VARIANT, State, first_config
from pyflash.inspect.inspection_sections import TIME_LINE
from pyflash.tuner.problems import FLAGS, NUMBERS
from pyflash.ui.page import page
from pyflash.variant.library import named, names

SERVED = (*PARTS, "/?")  # states lead to other states
HOSTILE = "\"'></title></script><script>alert(1)</script><img src=x onerror='alert(2)'>&lt;0"


def get(server: Explorer, url: str, headers: dict[str, str] | None = None, method: str = "GET"):
    """(status, headers, text), without following where it leads."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=300)
    connection.request(method, url, headers=headers or {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_the_first_config_is_legal_and_of_the_newest_family_that_runs_there(arch):
    config = first_config(arch)
    assert config.is_legal(arch)
    assert config.family.op is FORWARD
    assert config.family.generation == (90 if arch.sm == 90 else 80)


def page_of(server: Explorer, query: dict[str, str]) -> str:
    """The page that a query leads to, and nothing worse."""
    status, headers, text = get(server, f"/?{urlencode(query)}")
    if status == 303:
        status, headers, text = get(server, headers["Location"])
    assert status == 200, text
    assert "script" not in headers["Content-Security-Policy"]
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in text
    check_page(text, served=SERVED)
    return html.unescape(text)


def form_of(text: str) -> dict[str, str]:
    """What the second form would send: the values that the page has in it."""
    form = text.split("<form")[2]
    sent = {}
    for options, name in re.findall(r"<select name=\"([^\"]+)\">(.*?)</select>", form, re.DOTALL):
        sent[options] = re.search(r'value="([^"]*)" selected', name)[1]
    for tag in re.findall(r"<input ([^>]*)/>", form):
        values = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if values["type"] != "checkbox" or "checked" in values:
            sent[values["name"]] = values["value"]
    return sent


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_on_every_architecture_has_a_page(server, family, arch):
    config = config_of(family)
    text = page_of(
        server, {"config": str(config), "arch": arch.name, "problem": "heads=2,seqlen=9"}
    )
    assert f"{config} on {arch}" in text
    for _, sentence in config.violations(arch):
        assert sentence in text
    legal = config.is_legal(arch)
    assert (f"Legal on {arch}." in text) == legal
    assert ("<iframe" in text) == legal
    canonical = config.canonical()
    assert emit.emit_config(canonical, compiled_features(canonical)) in text
    resources = config.resources(arch)
    if legal:
        assert f"{resources.registers} of {arch.max_registers_per_thread}" in text
        assert f"{resources.smem_bytes:,} of {arch.smem_per_cta:,}" in text
        assert ("combination that it runs in" in text) == (config.family.op is FORWARD)


@pytest.mark.parametrize(
    ("family", "name"), [(f, name) for f in FAMILIES for name in f.config_type.field_types()]
)
def test_every_field_has_a_control_that_changes_it(server, family, name):
    config = config_of(family)
    sent = form_of(page_of(server, {"config": str(config), "arch": "sm_90"}))
    field = describe(family.config_type).fields[name]
    if field.kind is bool:
        assert (name in sent) == getattr(config, name)
        changed = not getattr(config, name)
        sent.pop(name, None)
        sent |= {name: "on"} if changed else {}
    elif field.is_enum:
        changed = next(member for member in field.kind if member != getattr(config, name))
        sent[name] = changed.name
    else:
        changed = getattr(config, name) + 8
        sent[name] = str(changed)
    status, headers, _ = get(server, f"/?{urlencode(sent)}")
    assert status == 303
    query = dict(parse_qsl(urlsplit(headers["Location"]).query))
    assert parse(query["config"]) == config.replace(**{name: changed})
    assert query["config"] in page_of(server, query)


@pytest.mark.parametrize("name", [*FLAGS, *NUMBERS])
def test_every_option_of_a_problem_has_a_control(server, name):
    sent = form_of(page_of(server, START))
    was = sent.get(problem_field(name), "")
    is_flag = name in FLAGS
    sent[problem_field(name)] = "on" if is_flag else "1"
    _, headers, _ = get(server, f"/?{urlencode(sent)}")
    words = dict(parse_qsl(urlsplit(headers["Location"]).query))["problem"].split(",")
    assert (name if is_flag else f"{name}=1") in words
    page_of(server, sent)
    if is_flag and was:
        del sent[problem_field(name)]
        _, headers, _ = get(server, f"/?{urlencode(sent)}")
        assert name not in dict(parse_qsl(urlsplit(headers["Location"]).query))["problem"].split(
            ","
        )


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_another_family_keeps_what_both_have(server, family):
    for other in FAMILIES:
        config = config_of(other)
        sent = form_of(page_of(server, {"config": str(config), "arch": "sm_80"}))
        assert sent[FIELDS_OF] == other.name
        sent[FAMILY] = family.name
        _, headers, _ = get(server, f"/?{urlencode(sent)}")
        query = dict(parse_qsl(urlsplit(headers["Location"]).query))
        chosen = parse(query["config"])
        assert (chosen.family, query["arch"]) == (family, "sm_80")
        assert (chosen.dtype, chosen.d_head) == (config.dtype, config.d_head)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_layouts_are_those_of_the_kernel(server, family):
    query = urlencode({"config": str(config_of(family)), "arch": "sm_90"})
    status, headers, text = get(server, f"{LAYOUTS}?{query}")
    assert status == 200, text
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    headings = check_page(text)
    assert "K in shared memory" in headings or "notes" in headings
    assert "<svg" in text or "no layouts: " in text


def test_a_kernel_is_emulated_in_a_frame(server):
    config = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
    shown = page_of(server, {"config": config, "arch": "sm_90"})
    (source,) = re.findall(rf'<iframe src="({EMULATED}[^"]*)"', shown)
    status, _, text = get(server, html.unescape(source))
    assert status == 200, text
    assert "The emulator finds nothing wrong." in text
    assert check_page(text) == [
        "shared memory traffic, emulated",
        "global memory traffic, emulated",
    ]


def test_the_emulated_part_has_a_time_line(monkeypatch):
    found = dataclasses.replace(looked_into_sm90(), traffic=emulated(), missing={})
    monkeypatch.setattr(parts, "inspect", lambda *_: found)
    text = page(parts.emulated(State.of(START)))
    assert check_page(text)[0] == TIME_LINE


@pytest.mark.parametrize("name", names())
def test_every_named_variant_has_a_page(server, name):
    sent = form_of(page_of(server, START)) | {VARIANT: name}
    status, headers, _ = get(server, f"/?{urlencode(sent)}")
    query = dict(parse_qsl(urlsplit(headers["Location"]).query))
    assert (status, query[VARIANT]) == (303, name)
    text = page_of(server, query)
    assert form_of(text)[VARIANT] == name
    assert named(name).formula in text
    config = parse(START["config"]).canonical()
    assert emit.emit_with_variant(config, named(name).variant, [Features()]) in text
    sent[VARIANT] = ""
    _, headers, _ = get(server, f"/?{urlencode(sent)}")
    assert VARIANT not in dict(parse_qsl(urlsplit(headers["Location"]).query))


def test_a_variant_of_ones_own_stays_beside_other_fields(server):
    text = page_of(server, START | {VARIANT: "mine(w: i32): s where abs(k - q) <= w"})
    assert form_of(text)[VARIANT].startswith("mine(w: i32)")
    assert "Tiles of 128 x 64, of 1024 queries and 512 keys" in text


def test_a_family_that_takes_no_variant_says_so(server):
    for family in FAMILIES:
        text = page_of(server, {"config": str(config_of(family)), VARIANT: "causal"})
        said = f"Kernels of {family} take no variant" in text
        assert said == (family.variant_header is None)


@pytest.mark.parametrize("config", SECONDS, ids=str)
def test_a_measured_config_leads_to_the_others(server, config):
    """The sentence says what is fastest, and every point is another state's URL."""
    query = START | {"config": str(config), "arch": "sm_90"}
    text = page_of(server, query)
    slower = SECONDS[config] / SECONDS[FASTEST]
    own = "It is this config." if config == FASTEST else f"{slower:.2f} times as long."
    assert "The fastest of 3 measured configs took 1,000.0 us" in text
    assert own in text
    picture = re.search(r"<svg (?:(?!</svg>).)*a point for each config.*?</svg>", text, re.DOTALL)
    links = re.findall(r'<a href="([^"]*)"', picture[0])
    found = [dict(parse_qsl(urlsplit(link).query)) for link in links]
    assert [parse(one["config"]) for one in found] == sorted(SECONDS, key=SECONDS.__getitem__)
    assert {one["problem"] for one in found} == {START["problem"]}


def test_a_problem_that_was_not_measured_leads_to_those_that_were(server):
    text = page_of(server, START | {"problem": "heads=4,seqlen=64"})
    assert "tuned.jsonl holds no measurement of this problem" in text
    for problem in MEASURED.problems:
        assert f">{problem}</a>" in text
    text = page_of(server, START | {VARIANT: "causal"})
    assert "None has a variant." in text


def test_a_journal_is_read_and_its_fastest_config_is_shown_first(tmp_path):
    journal, problem = tmp_path / "tuned.jsonl", next(iter(MEASURED.problems))
    samples = [
        {"kind": "sample", "problem": problem, "config": str(config), "features": "right_window",
         "seconds": seconds}
        for config, seconds in SECONDS.items()
    ]  # fmt: skip
    journal.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    measured = Measured.read(journal)
    assert measured.problems == {problem: SECONDS}
    assert measured.start("sm_80").config == FASTEST
    journal.write_text("")
    with pytest.raises(ValueError, match="holds no measured config: expected the journal"):
        Measured.read(journal)


@pytest.mark.parametrize("name", ["config", "arch", "problem", VARIANT])
@pytest.mark.parametrize("value", [HOSTILE, "", "\n", "(FP16", "999999999999999999999"])
@pytest.mark.parametrize("path", ["/", *PARTS])
def test_what_makes_no_state_is_refused_in_words(server, path, name, value):
    sent = START | {"config": str(FASTEST), name: value}  # which other tests compile, too
    status, _, text = get(server, f"{path}?{urlencode(sent)}")
    # An architecture or problem that is left empty is the default one, a variant is none.
    assert status == 400 or (value in ("", "\n") and name != "config"), text
    assert "<script" not in text
    assert "onerror='" not in text
    if path == "/" and status == 400:
        assert "error" in check_page(text, served=SERVED)


@pytest.mark.parametrize("field", ["d_head", problem_field("batch")])
def test_a_number_that_is_none_is_refused_by_its_name(server, field):
    sent = form_of(page_of(server, START)) | {field: "many"}
    status, _, text = get(server, f"/?{urlencode(sent)}")
    assert status == 400
    assert field.rpartition(".")[2] in html.unescape(text).split("controls</h2>")[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", *PARTS])
def test_other_sites_learn_and_compile_nothing(server, path, headers):
    status, _, text = get(server, f"{path}?{urlencode(START)}", headers)
    assert status == 403
    assert START["config"] not in html.unescape(text)


def test_other_paths_and_methods_have_nothing(server):
    for path in ("/favicon.ico", "/../pyproject.toml", "//etc/passwd", "/layouts/x"):
        assert get(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert get(server, "/", method=method)[0] == 501


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_command_says_where_it_serves_until_it_is_stopped(form):
    command = [sys.executable, "-m", "pyflash.cli", "explore", "--problem", "heads=2,seqlen=64"]
    command += form
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said = process.stdout.readline().decode().strip()
        url = urlsplit(json.loads(said)["url"] if form else said)
        assert url.hostname == HOST
        connection = http.client.HTTPConnection(url.hostname, url.port)
        connection.request("GET", f"/?{url.query}")
        assert connection.getresponse().status == 200
        taken = CliRunner().invoke(app, ["explore", "--port", str(url.port)])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"interrupted\n"
    assert taken.exit_code == 1
    assert taken.stderr == (
        f"error: {HOST}:{url.port}: Address already in use; pass another --port, or 0\n"
    )
