"""An option is a row of two tables: in a copy of the repository that has two more, a number and a
tensor, everything but the kernels takes them, with no edit elsewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.headers import unite
from support.toy_options import CONFIG, EDITS, TEXT, edit

from pyflash.codegen import emulated
from pyflash.op.options import OPTIONS

ROOT = Path(__file__).parents[2]
TABLES = ["cute_kernels/host/call.cpp", "cute_kernels/host/options.h", "cute_kernels/params.h"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    for name in ("pyflash", "codegen", "third_party", "cute_kernels"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    edit(root)
    compile_quickly(root)
    (root / "cache").mkdir(mode=0o700)
    run(root, "-m", "codegen", "--ops")
    return root


def compile_quickly(root: Path) -> None:
    """Every source depends on the edited tables, and what is compiled runs for a moment."""
    path = root / "codegen" / "toolchain.py"
    text = path.read_text()
    assert [text.count(flag) for flag in ('"-O1"', '"-O2"', '"-O3"')] == [1, 1, 2]
    path.write_text(re.sub('"-O[123]"', '"-O0"', text))
    unite("bindings", root)
    unite("host", root, apart=emulated._HOST)


def run(tree: Path, *arguments: str, **environment: str) -> None:
    paths = os.pathsep.join((str(tree), str(ROOT / "tests")))
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=os.environ
        | {"PYTHONPATH": paths, "PYFLASH_CACHE_DIR": str(tree / "cache")}
        | environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def found(tree) -> dict:
    words = ["calls", "gradients", "problems", "ranks", "commands"]
    run(tree, "-m", "support.toy_options", "found.json", *words)
    return json.loads((tree / "found.json").read_text())


def test_the_rows_are_all_that_is_edited():
    assert sorted(EDITS) == [*TABLES, "pyflash/op/options.py"]


def test_schemas_and_help_have_them(found):
    calls = found["calls"]
    assert "int toy_period=0, Tensor? toy_slopes=None)" in calls["schema"]
    backward = calls["backward's schema"]
    assert "Tensor? toy_slopes, Tensor q," in backward
    assert "int toy_period=0)" in backward
    assert "    - toy_period: a period.\n    - toy_slopes: a slope of each head.\n" in calls["help"]


def test_calls_take_them(found):
    """Padded and packed, one slope for each head or for each head of each sequence."""
    assert found["calls"]["same out"] == [True] * 4
    assert found["calls"]["meta"] == [2, 16, 4, 64]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("type of a number", "TypeError: pyflash: toy_period is float: expected an int"),
        ("value of a number", "ValueError: pyflash: toy_period = -3: expected a number from 1 to"),
        ("type of a tensor", "TypeError: pyflash: toy_slopes is int: expected a tensor or None"),
        ("dtype", "ValueError: pyflash: toy_slopes is float16: expected float32"),
        (
            "shape",
            "ValueError: pyflash: toy_slopes has shape (3,): expected (4,), the heads of q, or "
            "(2, 4) of each batch",
        ),
        ("stride", "ValueError: pyflash: toy_slopes has stride 2: expected 1, call .contiguous()"),
        ("device", "ValueError: pyflash: toy_slopes is on cpu: expected meta, where q is"),
        ("unknown", "did you mean toy_slopes?"),
    ],
)
def test_wrong_values_are_refused(found, case, words):
    refused = found["calls"]["refused"][case]
    assert refused.startswith(words) or refused.endswith(words), refused


@pytest.mark.parametrize("api", ["private", "public"])
def test_gradients(tree, found, api):
    """Those of q, k and v where the row says so; else a call that needs them is refused."""
    gradients = found["gradients"]
    if gradients["api"] != api:
        run(tree, "-m", "support.toy_options", "other.json", "gradients", PYFLASH_TORCH_API=api)
        gradients = json.loads((tree / "other.json").read_text())["gradients"]
    assert gradients == {
        "api": api,
        "taken": [True],
        "same": [True, True],
        "number": "RuntimeError: pyflash: toy_period = 3 has no gradients on the CPU: expected 0, "
        "or tensors that do not require gradients",
        "tensor": "RuntimeError: pyflash: toy_slopes requires gradients, and has none: expected a "
        "tensor that does not, as .detach() makes one",
        "tensor alone": gradients["tensor"],
        "autocast": "torch.bfloat16",
    }


def test_problems_have_them(found):
    problems = found["problems"]
    words = TEXT.split(",")
    assert sorted(problems["text"].split(",")) == sorted(words)
    assert problems["json"]["toy_period"] == 3
    assert problems["json"]["toy_slopes"] is True
    assert problems["backward"] == "none: toy_period has no gradients on the CPU"
    assert problems["drawn"] == [[4], True]
    assert problems["features"] == "plain"
    refused = "only full and causal attention can be compared with GEMMs"
    assert problems["bench"].endswith(refused)


def test_ranks_refuse_them_or_have_them_by_heads(found):
    ranks = found["ranks"]
    for name, option in (("number", "toy_period"), ("tensor", "toy_slopes")):
        sentence = f"ValueError: pyflash: {option} depends on positions in the whole sequence"
        assert ranks["ring"][name].startswith(sentence)
    assert ranks["same"] == [True, True, True]
    assert "toy_slopes has shape (3,): expected (4,)" in ranks["shape"]
    assert "toy_period = 3 has no gradients on the CPU" in ranks["number"]
    assert ranks["sliced"] == [[1.0, 2.0], [5.0, 6.0]]
    assert ranks["axes"] == [["heads"], ["batch", "heads"]]


def test_commands_have_flags(found):
    for name, (status, output, exception) in found["commands"].items():
        assert status == 0, (name, output, exception)


@pytest.mark.parametrize("case", ["emulate", "emulate one query"])
def test_the_emulated_kernel_gets_them(found, case):
    problem = json.loads(found["commands"][case][1])["problem"]
    assert (problem["toy_period"], problem["toy_slopes"], problem["sinks"]) == (3, True, False)


def test_the_emulators_text_says_what_is_not_the_default(found):
    output = found["commands"]["emulate text"][1]
    head = " ".join(output.partition(" CTAs")[0].split())
    assert head.startswith(CONFIG)
    assert "toy_period 3, toy_slopes True" in head
    assert "sinks" not in head


# Where an option's name is in code, and why that is no copy of the table's.
FORMULAS = "kernels, the CPU path, the reference and the gradients compute with it"
FEATURES = "a combination of features is built"
WINDOWS = "the masks of parts of a sequence are windows"
CAUSAL = "--mask and other libraries' attention are full or causal"
NAMES_OF_OTHERS = "torch's and transformers' arguments by ours"
EXAMPLES = "problems that are measured"
ALLOWED = {
    "pyflash/bench/": CAUSAL,
    "pyflash/compare/": CAUSAL,
    "pyflash/compat/": NAMES_OF_OTHERS,
    "pyflash/config/backward.py": FEATURES,
    "pyflash/config/features.py": FEATURES,
    "pyflash/distributed/attention.py": NAMES_OF_OTHERS,
    "pyflash/distributed/bench.py": CAUSAL,
    "pyflash/distributed/head_parallel.py": WINDOWS,
    "pyflash/distributed/model.py": WINDOWS,
    "pyflash/distributed/pieces.py": WINDOWS,
    "pyflash/distributed/ring.py": WINDOWS,
    "pyflash/distributed/schedule.py": WINDOWS,
    "pyflash/inspect/ncu_truth.py": EXAMPLES,
    "pyflash/integrations/": NAMES_OF_OTHERS,
    "pyflash/op/backward/": FORMULAS,
    "pyflash/op/cascade.py": "which options belong to the last level alone",
    "pyflash/op/dropout.py": "its state, and what it keeps",
    "pyflash/op/flex.py": NAMES_OF_OTHERS,
    "pyflash/op/functional.py": NAMES_OF_OTHERS,
    "pyflash/op/invariant.py": "what rows of a warp vote on",
    "pyflash/op/options.py": "the table",
    "pyflash/op/reference.py": FORMULAS,
    "pyflash/op/variants/features.py": FEATURES,
    "pyflash/tuner/problems.py": EXAMPLES,
}
# C++ that must not know an option. The rest computes with what is in the parameters.
WITHOUT_NAMES = (
    "cute_kernels/bindings/*",
    "cute_kernels/emulator/*",
    "cute_kernels/native/*",
    "cute_kernels/host/checks.*",
    "cute_kernels/host/extents.*",
    "cute_kernels/host/contenders.*",
    "cute_kernels/host/rules.*",
    "cute_kernels/host/select.*",
    "cute_kernels/host/tensor_view.*",
)
# What only says how a call runs is the tuner's business by name.
NAMES = {name for name, option in OPTIONS.items() if not option.chooses}


def names_in_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(word)) | ast.keyword(arg=str(word)) | ast.arg(arg=word):
                yield word
            case ast.Attribute(attr=word) | ast.AnnAssign(target=ast.Name(id=word)):
                yield word


def names_in_cpp(text: str) -> Iterator[str]:
    yield from re.findall(r"\w+", re.sub(r"//.*", "", text))


def where_options_are_named(root: Path) -> Counter[str]:
    """How often, by file."""
    paths = [*root.glob("pyflash/**/*.py"), *root.glob("codegen/**/*.py")]
    named = {path: names_in_python(path.read_text()) for path in paths}
    for pattern in WITHOUT_NAMES:
        for path in root.glob(pattern):
            named[path] = names_in_cpp(path.read_text()) if path.is_file() else iter(())
    counts = {
        path.relative_to(root).as_posix(): sum(name in NAMES for name in words)
        for path, words in named.items()
    }
    return +Counter(counts)


def test_no_other_file_names_an_option():
    found = where_options_are_named(ROOT)
    strange = [name for name in found if not name.startswith(tuple(ALLOWED))]
    assert strange == []
    unused = [place for place in ALLOWED if not any(name.startswith(place) for name in found)]
    assert unused == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyflash/op/fake.py", "x = options.get('sinks')"),
        ("pyflash/op/fake.py", "f(softcap=3)"),
        ("pyflash/op/fake.py", "def f(window_left): ..."),
        ("pyflash/op/fake.py", "x.softmax_scale"),
        ("codegen/cli.py", "class A:\n    causal: bool"),
        ("cute_kernels/emulator/params.cpp", "params.sinks // here"),
        ("cute_kernels/host/checks.h", "int softcap;"),
    ],
)
def test_a_planted_name_is_found(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert where_options_are_named(tmp_path) == {name: 1}


def test_comments_and_longer_words_are_no_names(tmp_path):
    path = tmp_path / "pyflash" / "a.py"
    path.parent.mkdir()
    path.write_text('"""sinks and softcap."""\nwith_sinks = 1  # sinks\n')
    assert where_options_are_named(tmp_path) == {}
